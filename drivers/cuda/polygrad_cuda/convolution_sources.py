"""CUDA text of convolutions element by element, for geometries and dtypes that cuDNN has no engine for.

Here: text. Not here: launching, and the library that is used first (`convolution.py`).

Every sum runs in one order: results are the same in every run. Each operand is contiguous: x [n, c, ...],
w [o, c / groups, ...], y [n, o, ...], of three axes after the channels.
"""

import functools

from polygrad_cuda.sources import loads_and_stores

_NUMBERS = """
    const I n, const I groups, const I inputs, const I outputs, const I xd, const I xh, const I xw,
    const I kd, const I kh, const I kw, const I yd, const I yh, const I yw, const I sd, const I sh, const I sw,
    const I bd, const I bh, const I bw, const I dd, const I dh, const I dw"""

_TEXT = """
typedef long long I;
LOAD_AND_STORE
#define EACH(total) for (I at = (I)blockIdx.x * blockDim.x + threadIdx.x; at < (total); at += (I)gridDim.x * blockDim.x)

extern "C" __global__ void __launch_bounds__(256) convolution(
    const TYPE* __restrict__ x, const TYPE* __restrict__ w, TYPE* __restrict__ y, NUMBERS)
{
    EACH(n * groups * outputs * yd * yh * yw) {
        I rest = at;
        const I pw = rest % yw; rest /= yw;
        const I ph = rest % yh; rest /= yh;
        const I pd = rest % yd; rest /= yd;
        const I o = rest % (groups * outputs), example = rest / (groups * outputs);
        SUM sum = 0;
        for (I c = 0; c < inputs; c++) {
            const TYPE* image = x + (example * groups * inputs + o / outputs * inputs + c) * xd * xh * xw;
            const TYPE* kernel = w + (o * inputs + c) * kd * kh * kw;
            for (I i = 0; i < kd; i++) {
                const I d = pd * sd + i * dd - bd;
                if (d < 0 || d >= xd) continue;
                for (I j = 0; j < kh; j++) {
                    const I h = ph * sh + j * dh - bh;
                    if (h < 0 || h >= xh) continue;
                    for (I k = 0; k < kw; k++) {
                        const I v = pw * sw + k * dw - bw;
                        if (v < 0 || v >= xw) continue;
                        sum += load(image[(d * xh + h) * xw + v]) * load(kernel[(i * kh + j) * kw + k]);
                    }
                }
            }
        }
        y[at] = store(sum);
    }
}

extern "C" __global__ void __launch_bounds__(256) convolution_input(
    const TYPE* __restrict__ y, const TYPE* __restrict__ w, TYPE* __restrict__ x, NUMBERS)
{
    EACH(n * groups * inputs * xd * xh * xw) {
        I rest = at;
        const I v = rest % xw; rest /= xw;
        const I h = rest % xh; rest /= xh;
        const I d = rest % xd; rest /= xd;
        const I c = rest % (groups * inputs), example = rest / (groups * inputs), group = c / inputs;
        SUM sum = 0;
        for (I i = 0; i < kd; i++) {
            const I pd = d + bd - i * dd;
            if (pd < 0 || pd % sd || pd / sd >= yd) continue;
            for (I j = 0; j < kh; j++) {
                const I ph = h + bh - j * dh;
                if (ph < 0 || ph % sh || ph / sh >= yh) continue;
                for (I k = 0; k < kw; k++) {
                    const I pw = v + bw - k * dw;
                    if (pw < 0 || pw % sw || pw / sw >= yw) continue;
                    for (I o = 0; o < outputs; o++) {
                        const I channel = group * outputs + o;
                        const I place = ((example * groups * outputs + channel) * yd + pd / sd) * yh + ph / sh;
                        const I tap = ((channel * inputs + c % inputs) * kd + i) * kh + j;
                        sum += load(y[place * yw + pw / sw]) * load(w[tap * kw + k]);
                    }
                }
            }
        }
        x[at] = store(sum);
    }
}

extern "C" __global__ void __launch_bounds__(256) convolution_weight(
    const TYPE* __restrict__ x, const TYPE* __restrict__ y, TYPE* __restrict__ w, NUMBERS)
{
    __shared__ SUM sums[256];
    const I windows = yd * yh * yw;
    for (I at = blockIdx.x; at < groups * outputs * inputs * kd * kh * kw; at += gridDim.x) {
        I rest = at;
        const I k = rest % kw; rest /= kw;
        const I j = rest % kh; rest /= kh;
        const I i = rest % kd; rest /= kd;
        const I c = rest % inputs, o = rest / inputs;
        SUM sum = 0;
        for (I one = threadIdx.x; one < n * windows; one += 256) {
            const I example = one / windows, p = one % windows;
            const I d = p / (yh * yw) * sd + i * dd - bd;
            const I h = p / yw % yh * sh + j * dh - bh;
            const I v = p % yw * sw + k * dw - bw;
            if (d < 0 || d >= xd || h < 0 || h >= xh || v < 0 || v >= xw) continue;
            const I channel = example * groups * inputs + o / outputs * inputs + c;
            const I place = (example * groups * outputs + o) * windows + p;
            sum += load(x[((channel * xd + d) * xh + h) * xw + v]) * load(y[place]);
        }
        sums[threadIdx.x] = sum;
        __syncthreads();
        for (int half = 128; half > 0; half /= 2) {
            if (threadIdx.x < half) sums[threadIdx.x] += sums[threadIdx.x + half];
            __syncthreads();
        }
        if (threadIdx.x == 0) w[at] = store(sums[0]);
        __syncthreads();
    }
}
"""


@functools.cache
def text(dtype: str) -> str:
    """Return the text of the three kernels, called as the ops are.

    >>> "typedef float TYPE" in text("float32"), "typedef double SUM" in text("float64")
    (True, True)
    """
    stored = {"float16": "unsigned short", "bfloat16": "unsigned short", "float32": "float", "float64": "double"}[dtype]
    sums = "double" if dtype == "float64" else "float"
    body = _TEXT.replace("LOAD_AND_STORE", loads_and_stores(dtype)).replace("NUMBERS", _NUMBERS.strip())
    return f"typedef {stored} TYPE;\ntypedef {sums} SUM;\n{body}"

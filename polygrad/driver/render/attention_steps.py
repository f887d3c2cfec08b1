"""The text of attention that its kernels share, and its forward kernel: C for CUDA C++ and OpenCL C.

Here: STEPS, on tiles in shared memory and registers, and FORWARD. Not here: tiles' sizes (`attention.py`), the kernels
of the backward pass (`attention_backward.py`), what a language spells in its own way.
"""

# What a driver's text defines: ELEMENT and VALUE, the types in memory and in registers; VEC, four values with parts x,
# y, z, w, and MAKE(x, y, z, w); LONG, 64 bits; KERNEL, DEVICE, GLOBAL, LOCAL; POOL(n), which declares the vectors
# `pool`; UNROLL and UNROLL4, before a loop; THREAD and WORK, the numbers of work-item and group; BARRIER of a group,
# ROW_BARRIER of the sixteen work-items of a row; FMA(a, b, c), EXP2, LOG2, GREATER (of two values), INF;
# LOAD(p, i), LOAD4(p, i), STORE(v, p, i); and rows_max(m, room, x, y) and rows_sum: each of the R values of a
# work-item combined with those of the sixteen in its row.
STEPS = """
#define BM (16 * R)
#define BN (16 * C)
#define D4 ((D + 3) / 4)
#define DV4 ((DV + 3) / 4)
#define SQ (D4 | 1)
#define SV (DV4 | 1)
#define SP (4 * C + 1)
#define EQ ((D4 + 15) / 16)
#define EV ((DV4 + 15) / 16)
#define SIZES LONG batch, LONG rows, LONG columns, LONG heads, LONG shared
#define STRIDES LONG qb, LONG qs, LONG qh, LONG kb, LONG ks, LONG kh, LONG vb, LONG vs, LONG vh, VALUE scale
#define LOG2E ((VALUE)1.44269504088896340736)
#define LN2 ((VALUE)0.69314718055994530942)

DEVICE VALUE dot4(VEC a, VEC b, VALUE c) { return FMA(a.w, b.w, FMA(a.z, b.z, FMA(a.y, b.y, FMA(a.x, b.x, c)))); }
DEVICE VEC axpy(VALUE a, VEC b, VEC c) {
    return MAKE(FMA(a, b.x, c.x), FMA(a, b.y, c.y), FMA(a, b.z, c.z), FMA(a, b.w, c.w));
}
DEVICE VEC times(VALUE a, VEC b) { return MAKE(a * b.x, a * b.y, a * b.z, a * b.w); }
DEVICE VEC read4(GLOBAL const ELEMENT* p, LONG i, int left) {
#if WIDE
    return LOAD4(p, i);
#else
    return MAKE(LOAD(p, i), left > 1 ? LOAD(p, i + 1) : (VALUE)0, left > 2 ? LOAD(p, i + 2) : (VALUE)0,
                left > 3 ? LOAD(p, i + 3) : (VALUE)0);
#endif
}
DEVICE void write4(VEC v, GLOBAL ELEMENT* p, LONG i, int left) {
    if (left > 0) STORE(v.x, p, i);
    if (left > 1) STORE(v.y, p, i + 1);
    if (left > 2) STORE(v.z, p, i + 2);
    if (left > 3) STORE(v.w, p, i + 3);
}
/* Rows first .. first + count - 1 of a matrix, zeros from its end on. */
#define FETCH(to, stride, count, vectors, size, from, step, first, end) \\
    for (int e_ = t; e_ < (count) * (vectors); e_ += 256) { \\
        const int r_ = e_ / (vectors), c_ = e_ % (vectors); \\
        (to)[r_ * (stride) + c_] = (first) + r_ < (end) \\
            ? read4(from, (LONG)((first) + r_) * (step) + 4 * c_, (size) - 4 * c_) : MAKE(0, 0, 0, 0); \\
    }
/* s[i][j] += the product of row i of a and row j of b. */
#define ROWS_BY_ROWS(s, a, b, stride, vectors) \\
    UNROLL4 for (int c_ = 0; c_ < (vectors); c_++) { \\
        VEC u_[R], w_[C]; \\
        UNROLL for (int i = 0; i < R; i++) u_[i] = (a)[(y + 16 * i) * (stride) + c_]; \\
        UNROLL for (int j = 0; j < C; j++) w_[j] = (b)[(x + 16 * j) * (stride) + c_]; \\
        UNROLL for (int i = 0; i < R; i++) UNROLL for (int j = 0; j < C; j++) s[i][j] = dot4(u_[i], w_[j], s[i][j]); \\
    }
/* o[i] += the product of row i of the tile of scores and the matrix b. */
#define SCORES_BY_ROWS(o, b, stride, each) \\
    UNROLL4 for (int c_ = 0; c_ < 4 * C; c_++) { \\
        VEC u_[R]; \\
        UNROLL for (int i = 0; i < R; i++) u_[i] = sp[(y + 16 * i) * SP + c_]; \\
        UNROLL for (int e = 0; e < (each); e++) { \\
            LOCAL const VEC* w_ = (b) + 4 * c_ * (stride) + x + 16 * e; \\
            const VEC w0_ = w_[0], w1_ = w_[stride], w2_ = w_[2 * (stride)], w3_ = w_[3 * (stride)]; \\
            UNROLL for (int i = 0; i < R; i++) \\
                o[i][e] = axpy(u_[i].w, w3_, axpy(u_[i].z, w2_, axpy(u_[i].y, w1_, axpy(u_[i].x, w0_, o[i][e])))); \\
        } \\
    }
#define ROUND4(n) (((n) + 3) / 4 * 4)
#define SCORE(i, j) ((LOCAL VALUE*)sp)[(y + 16 * (i)) * (4 * SP) + x + 16 * (j)]
"""

FORWARD = """
KERNEL void attention_forward(
    GLOBAL const ELEMENT* q, GLOBAL const ELEMENT* k, GLOBAL const ELEMENT* v, GLOBAL ELEMENT* out, GLOBAL VALUE* lse,
    LONG q0, LONG k0, LONG v0, LONG out0, LONG lse0, SIZES, STRIDES)
{
    POOL((BM + BN) * SQ + BN * SV + BM * SP + 16 * (EQ > EV ? EQ : EV) + ROOM * (BM * 17 + 3) / 4)
    LOCAL VEC *sq = pool, *sk = sq + BM * SQ, *sv = sk + BN * SQ, *sp = sv + BN * SV;
    LOCAL VALUE* room = (LOCAL VALUE*)(sp + BM * SP + 16 * (EQ > EV ? EQ : EV));
    const int t = THREAD, x = t & 15, y = t >> 4;
    const int all = (int)(batch * heads), bh = (int)(WORK % all), b = bh / (int)heads, h = bh % (int)heads;
    const int first = (int)((rows + BM - 1) / BM - 1 - WORK / all) * BM, shares = (int)(heads / shared);
    q += q0 + b * qb + h * qh; k += k0 + b * kb + h / shares * kh; v += v0 + b * vb + h / shares * vh;
    FETCH(sq, SQ, BM, D4, D, q, qs, first, rows)
    VALUE top[R], total[R];
    VEC o[R][EV];
    UNROLL for (int i = 0; i < R; i++) {
        top[i] = -INF; total[i] = 0;
        UNROLL for (int e = 0; e < EV; e++) o[i][e] = MAKE(0, 0, 0, 0);
    }
    const int end = CAUSAL && first + BM < columns ? first + BM : (int)columns;
    const VALUE factor = scale * LOG2E;
    for (int start = 0; start < end; start += BN) {
        BARRIER
        FETCH(sk, SQ, BN, D4, D, k, ks, start, columns)
        FETCH(sv, SV, BN, DV4, DV, v, vs, start, columns)
        BARRIER
        VALUE s[R][C], m[R];
        UNROLL for (int i = 0; i < R; i++) UNROLL for (int j = 0; j < C; j++) s[i][j] = 0;
        ROWS_BY_ROWS(s, sq, sk, SQ, D4)
        UNROLL for (int i = 0; i < R; i++) UNROLL for (int j = 0; j < C; j++) s[i][j] *= factor;
        if (start + BN > columns || (CAUSAL && start + BN > first + 1)) {
            UNROLL for (int i = 0; i < R; i++) UNROLL for (int j = 0; j < C; j++) {
                const int row = first + y + 16 * i, column = start + x + 16 * j;
                if (column >= columns || (CAUSAL && column > row)) s[i][j] = -INF;
            }
        }
        UNROLL for (int i = 0; i < R; i++) {
            m[i] = top[i];
            UNROLL for (int j = 0; j < C; j++) m[i] = GREATER(m[i], s[i][j]);
        }
        rows_max(m, room, x, y);
        UNROLL for (int i = 0; i < R; i++) {
            const VALUE base = m[i] == -INF ? (VALUE)0 : m[i], before = EXP2(top[i] - base);
            top[i] = m[i];
            total[i] *= before;
            UNROLL for (int j = 0; j < C; j++) {
                const VALUE p = EXP2(s[i][j] - base);
                total[i] += p;
                SCORE(i, j) = p;
            }
            UNROLL for (int e = 0; e < EV; e++) o[i][e] = times(before, o[i][e]);
        }
        ROW_BARRIER
        SCORES_BY_ROWS(o, sv, SV, EV)
    }
    rows_sum(total, room, x, y);
    UNROLL for (int i = 0; i < R; i++) {
        const int row = first + y + 16 * i;
        if (row < rows) {
            const LONG at = out0 + ((b * rows + row) * heads + h) * DV;
            const VALUE share = 1 / total[i];
            UNROLL for (int e = 0; e < EV; e++)
                write4(times(share, o[i][e]), out, at + 4 * (x + 16 * e), DV - 4 * (x + 16 * e));
            if (x == 0) lse[lse0 + (LONG)bh * rows + row] = (top[i] + LOG2(total[i])) * LN2;
        }
    }
}
"""

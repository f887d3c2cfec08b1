"""The kernels of the backward pass of attention: C for CUDA C++ and OpenCL C, to stand behind `attention_steps.STEPS`.

Here: QUERIES and KEYS, which make scores twice, and DELTA and GATHER, with which KEYS may keep what it makes.
Not here: which of them are launched, which drivers decide.
"""

# *delta* is what `attention_queries` writes and `attention_keys` reads: for each row the sum of result times its
# gradient, which is that of weights times theirs.
QUERIES = """
KERNEL void attention_queries(
    GLOBAL const ELEMENT* q, GLOBAL const ELEMENT* k, GLOBAL const ELEMENT* v, GLOBAL const ELEMENT* out,
    GLOBAL const VALUE* lse, GLOBAL const ELEMENT* g, GLOBAL ELEMENT* dq, GLOBAL VALUE* delta,
    LONG q0, LONG k0, LONG v0, LONG out0, LONG lse0, LONG g0, LONG dq0, SIZES,
    LONG dqb, LONG dqs, LONG dqh, LONG ob, LONG os, LONG oh, LONG gb, LONG gs, LONG gh, LONG lb, LONG lh, LONG ls,
    STRIDES)
{
    POOL((BM + BN) * (SQ + SV) + BM * SP + 16 * (EQ > EV ? EQ : EV) + ROOM * (BM * 17 + 3) / 4)
    LOCAL VEC *sq = pool, *sk = sq + BM * SQ, *sg = sk + BN * SQ, *sv = sg + BM * SV, *sp = sv + BN * SV;
    LOCAL VALUE* room = (LOCAL VALUE*)(sp + BM * SP + 16 * (EQ > EV ? EQ : EV));
    const int t = THREAD, x = t & 15, y = t >> 4;
    const int all = (int)(batch * heads), bh = (int)(WORK % all), b = bh / (int)heads, h = bh % (int)heads;
    const int first = (int)((rows + BM - 1) / BM - 1 - WORK / all) * BM, shares = (int)(heads / shared);
    q += q0 + b * qb + h * qh; k += k0 + b * kb + h / shares * kh; v += v0 + b * vb + h / shares * vh;
    out += out0 + b * ob + h * oh; g += g0 + b * gb + h * gh; lse += lse0 + b * lb + h * lh;
    FETCH(sq, SQ, BM, D4, D, q, qs, first, rows)
    FETCH(sg, SV, BM, DV4, DV, g, gs, first, rows)
    BARRIER
    VALUE sum[R], base[R];
    VEC o[R][EQ];
    UNROLL for (int i = 0; i < R; i++) {
        const int row = first + y + 16 * i;
        sum[i] = 0;
        base[i] = row < rows ? lse[row * ls] * LOG2E : (VALUE)0;
        UNROLL for (int e = 0; e < EQ; e++) o[i][e] = MAKE(0, 0, 0, 0);
        if (row < rows)
            for (int c = x; c < DV4; c += 16)
                sum[i] = dot4(sg[(y + 16 * i) * SV + c], read4(out, row * os + 4 * c, DV - 4 * c), sum[i]);
    }
    rows_sum(sum, room, x, y);
    UNROLL for (int i = 0; i < R; i++) {
        const int row = first + y + 16 * i;
        if (row < rows && x == 0) delta[(LONG)bh * rows + row] = sum[i];
    }
    const int end = CAUSAL && first + BM < columns ? first + BM : (int)columns;
    const VALUE factor = scale * LOG2E;
    for (int start = 0; start < end; start += BN) {
        BARRIER
        FETCH(sk, SQ, BN, D4, D, k, ks, start, columns)
        FETCH(sv, SV, BN, DV4, DV, v, vs, start, columns)
        BARRIER
        VALUE s[R][C], d[R][C];
        UNROLL for (int i = 0; i < R; i++) UNROLL for (int j = 0; j < C; j++) { s[i][j] = 0; d[i][j] = 0; }
        ROWS_BY_ROWS(s, sq, sk, SQ, D4)
        ROWS_BY_ROWS(d, sg, sv, SV, DV4)
        UNROLL for (int i = 0; i < R; i++) UNROLL for (int j = 0; j < C; j++) {
            const int row = first + y + 16 * i, column = start + x + 16 * j;
            const int seen = column < columns && (!CAUSAL || column <= row);
            SCORE(i, j) = seen ? EXP2(FMA(s[i][j], factor, -base[i])) * (d[i][j] - sum[i]) : (VALUE)0;
        }
        ROW_BARRIER
        SCORES_BY_ROWS(o, sk, SQ, EQ)
    }
    UNROLL for (int i = 0; i < R; i++) {
        const int row = first + y + 16 * i;
        const LONG at = dq0 + b * dqb + row * dqs + h * dqh;
        if (row < rows)
            UNROLL for (int e = 0; e < EQ; e++)
                write4(times(scale, o[i][e]), dq, at + 4 * (x + 16 * e), D - 4 * (x + 16 * e));
    }
}
"""

KEYS = """
KERNEL void attention_keys(
    GLOBAL const ELEMENT* q, GLOBAL const ELEMENT* k, GLOBAL const ELEMENT* v, GLOBAL const VALUE* lse,
    GLOBAL const ELEMENT* g, GLOBAL const VALUE* delta, GLOBAL ELEMENT* dk, GLOBAL ELEMENT* dv,
    GLOBAL VALUE* slopes, LONG q0, LONG k0, LONG v0, LONG lse0, LONG g0, LONG dk0, LONG dv0, LONG skip, LONG count,
    SIZES, LONG dkb, LONG dks, LONG dkh, LONG dvb, LONG dvs, LONG dvh,
    LONG gb, LONG gs, LONG gh, LONG lb, LONG lh, LONG ls, STRIDES)
{
    POOL((BM + BN) * (SQ + SV) + BM * SP + 16 * (EQ > EV ? EQ : EV))
    LOCAL VEC *sk = pool, *sq = sk + BM * SQ, *sv = sq + BN * SQ, *sg = sv + BM * SV, *sp = sg + BN * SV;
    const int t = THREAD, x = t & 15, y = t >> 4;
    const int bj = (int)(skip + WORK % count), b = bj / (int)shared, h = bj % (int)shared;
    const int first = (int)(WORK / count) * BM, shares = (int)(heads / shared);
    k += k0 + b * kb + h * kh; v += v0 + b * vb + h * vh;
    FETCH(sk, SQ, BM, D4, D, k, ks, first, columns)
    FETCH(sv, SV, BM, DV4, DV, v, vs, first, columns)
    VEC ok[R][EQ], ov[R][EV];
    UNROLL for (int i = 0; i < R; i++) {
        UNROLL for (int e = 0; e < EQ; e++) ok[i][e] = MAKE(0, 0, 0, 0);
        UNROLL for (int e = 0; e < EV; e++) ov[i][e] = MAKE(0, 0, 0, 0);
    }
    const VALUE factor = scale * LOG2E;
    for (int share = 0; share < shares; share++) {
        const int n = h * shares + share;
        GLOBAL const ELEMENT *qn = q + q0 + b * qb + n * qh, *gn = g + g0 + b * gb + n * gh;
        GLOBAL const VALUE *ln = lse + lse0 + b * lb + n * lh, *dn = delta + (b * heads + n) * rows;
        for (int start = CAUSAL ? first / BN * BN : 0; start < rows; start += BN) {
            BARRIER
            FETCH(sq, SQ, BN, D4, D, qn, qs, start, rows)
            FETCH(sg, SV, BN, DV4, DV, gn, gs, start, rows)
            BARRIER
            VALUE s[R][C], d[R][C];
            UNROLL for (int i = 0; i < R; i++) UNROLL for (int j = 0; j < C; j++) { s[i][j] = 0; d[i][j] = 0; }
            ROWS_BY_ROWS(s, sk, sq, SQ, D4)
            UNROLL for (int j = 0; j < C; j++) {
                const int row = start + x + 16 * j;
                const VALUE base = row < rows ? ln[row * ls] * LOG2E : (VALUE)0;
                UNROLL for (int i = 0; i < R; i++) {
                    const int column = first + y + 16 * i;
                    const int seen = row < rows && column < columns && (!CAUSAL || column <= row);
                    s[i][j] = seen ? EXP2(FMA(s[i][j], factor, -base)) : (VALUE)0;
                    SCORE(i, j) = s[i][j];
                }
            }
            ROW_BARRIER
            SCORES_BY_ROWS(ov, sg, SV, EV)
            ROWS_BY_ROWS(d, sv, sg, SV, DV4)
            ROW_BARRIER
            UNROLL for (int j = 0; j < C; j++) {
                const int row = start + x + 16 * j;
                const VALUE sum = row < rows ? dn[row] : (VALUE)0;
                UNROLL for (int i = 0; i < R; i++) {
                    const int column = first + y + 16 * i;
                    const int seen = row < rows && column < columns && (!CAUSAL || column <= row);
                    const VALUE slope = seen ? s[i][j] * (d[i][j] - sum) : (VALUE)0;
                    SCORE(i, j) = slope;
#if KEPT
                    if (row < rows && column < columns)
                        slopes[(((WORK % count) * shares + share) * columns + column) * ROUND4(rows) + row] = slope;
#endif
                }
            }
            ROW_BARRIER
            SCORES_BY_ROWS(ok, sq, SQ, EQ)
        }
    }
    UNROLL for (int i = 0; i < R; i++) {
        const int column = first + y + 16 * i;
        if (column < columns) {
            const LONG to_k = dk0 + b * dkb + column * dks + h * dkh, to_v = dv0 + b * dvb + column * dvs + h * dvh;
            UNROLL for (int e = 0; e < EQ; e++)
                write4(times(scale, ok[i][e]), dk, to_k + 4 * (x + 16 * e), D - 4 * (x + 16 * e));
            UNROLL for (int e = 0; e < EV; e++)
                write4(ov[i][e], dv, to_v + 4 * (x + 16 * e), DV - 4 * (x + 16 * e));
        }
    }
}
"""

# With memory for the slopes of scores, `attention_keys` keeps them, a row of queries for each key, and the gradient by
# queries is a product: five products in all, where `attention_queries` makes two of them again.
DELTA = """
KERNEL void attention_delta(
    GLOBAL const ELEMENT* out, GLOBAL const ELEMENT* g, GLOBAL VALUE* delta, LONG out0, LONG g0, SIZES,
    LONG ob, LONG os, LONG oh, LONG gb, LONG gs, LONG gh)
{
    POOL((BM * 17 + 3) / 4)
    LOCAL VALUE* room = (LOCAL VALUE*)pool;
    const int t = THREAD, x = t & 15, y = t >> 4;
    const LONG begin = WORK * BM;
    VALUE sum[R];
    UNROLL for (int i = 0; i < R; i++) {
        const LONG at = begin + y + 16 * i, b = at / (rows * heads), h = at / rows % heads, row = at % rows;
        sum[i] = 0;
        if (at < batch * heads * rows)
            for (int c = x; c < DV4; c += 16)
                sum[i] = dot4(read4(g, g0 + b * gb + h * gh + row * gs + 4 * c, DV - 4 * c),
                              read4(out, out0 + b * ob + h * oh + row * os + 4 * c, DV - 4 * c), sum[i]);
    }
    rows_sum(sum, room, x, y);
    UNROLL for (int i = 0; i < R; i++) {
        const LONG at = begin + y + 16 * i;
        if (x == 0 && at < batch * heads * rows) delta[at] = sum[i];
    }
}
"""
GATHER = """
KERNEL void attention_gather(
    GLOBAL const ELEMENT* k, GLOBAL const VALUE* slopes, GLOBAL ELEMENT* dq, LONG k0, LONG dq0, LONG skip, LONG count,
    SIZES, LONG kb, LONG ks, LONG kh, LONG dqb, LONG dqs, LONG dqh, VALUE scale)
{
    POOL(BN * (4 * R + SQ) + 32)
    LOCAL VEC *sd = pool, *sk = sd + BN * 4 * R;
    const int t = THREAD, x = t & 15, y = t >> 4, shares = (int)(heads / shared);
    const int all = (int)count * shares, n = (int)(WORK % all), h = (int)skip * shares + n;
    const int b = h / (int)heads, head = h % (int)heads;
    const int first = (int)((rows + BM - 1) / BM - 1 - WORK / all) * BM, length = (int)ROUND4(rows);
    k += k0 + b * kb + head / shares * kh; slopes += n * columns * length;
    VEC o[R][EQ];
    UNROLL for (int i = 0; i < R; i++) UNROLL for (int e = 0; e < EQ; e++) o[i][e] = MAKE(0, 0, 0, 0);
    const int end = CAUSAL && first + BM < columns ? first + BM : (int)columns;
    for (int start = 0; start < end; start += BN) {
        BARRIER
        FETCH(sk, SQ, BN, D4, D, k, ks, start, columns)
        for (int e = t; e < BN * 4 * R; e += 256) {
            const int c = start + e / (4 * R), r = first + e % (4 * R) * 4;
            GLOBAL const VALUE* from = slopes + (LONG)c * length + r;
            const int there = c < columns && r < rows && (!CAUSAL || c <= r + 3);  /* the others nobody has written */
            sd[e] = there ? MAKE(from[0], from[1], from[2], from[3]) : MAKE(0, 0, 0, 0);
        }
        BARRIER
        UNROLL4 for (int c = 0; c < BN; c++) {
            VEC w[EQ];
            UNROLL for (int e = 0; e < EQ; e++) w[e] = sk[c * SQ + x + 16 * e];
            UNROLL for (int i = 0; i < R / 4; i++) {
                const VEC u = sd[c * 4 * R + y + 16 * i];
                UNROLL for (int e = 0; e < EQ; e++) {
                    o[4 * i][e] = axpy(u.x, w[e], o[4 * i][e]);
                    o[4 * i + 1][e] = axpy(u.y, w[e], o[4 * i + 1][e]);
                    o[4 * i + 2][e] = axpy(u.z, w[e], o[4 * i + 2][e]);
                    o[4 * i + 3][e] = axpy(u.w, w[e], o[4 * i + 3][e]);
                }
            }
        }
    }
    UNROLL for (int i = 0; i < R; i++) {
        const int row = first + 64 * (i / 4) + 4 * y + i % 4;
        const LONG at = dq0 + b * dqb + row * dqs + head * dqh;
        if (row < rows)
            UNROLL for (int e = 0; e < EQ; e++)
                write4(times(scale, o[i][e]), dq, at + 4 * (x + 16 * e), D - 4 * (x + 16 * e));
    }
}
"""

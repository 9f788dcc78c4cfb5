// cuBLASLt's library, as far as `src/cublaslt/sys.rs` calls it: products of bf16, of E4M3 with a scale for each row and of E2M1
// with a scale for each 16, with f32 or bf16 results, one value after the other. What was described wrongly shows, or ends
// the program: sizes that do not fit each other, rows longer than what lies between them, addresses that do not begin where
// was said, scales that are not there or not those of the type, a product of a shape that no algorithm was asked for.
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace {

struct Description {
    int pointer_mode, turned[2], scale_modes[2];
    const void *scales[2];
};

struct Layout {
    int type;
    uint64_t rows, columns;
    int64_t stride;
};

struct Preference {
    uint64_t workspace;
    uint32_t reductions, alignments[4];
};

// What an algorithm is good for; it fits the 64 bytes that callers keep.
struct Algorithm {
    const Description *product;
    const Layout *a, *b, *d;
    uint64_t workspace;
    uint32_t alignments[4];
};
static_assert(sizeof(Algorithm) <= 64, "an algorithm has 64 bytes");

struct Found {
    Algorithm algorithm;
    char rest[64 - sizeof(Algorithm)];
    size_t workspace;
    int state;
    float waves;
    int reserved[4];
};
static_assert(sizeof(Found) == 96, "as the header has it");

const int BF16 = 14, E4M3 = 28, E2M1 = 33, INVALID = 7;

[[noreturn]] void fail(const char *problem) {
    fprintf(stderr, "cuBLASLt: %s\n", problem);
    abort();
}

bool fits(const Layout *layout, int type) {
    return layout->type == type && layout->rows > 0 && layout->columns > 0 && layout->stride >= (int64_t)layout->rows;
}

// A matrix of few bits lies as the real one demands: what is added up lies together, in pieces of 16 bytes.
bool fits_few_bits(const Layout *layout, bool turned, bool should_turn, int mode, const void *scales) {
    int wanted = layout->type == E4M3 ? 3 : 1, values = layout->type == E4M3 ? 16 : 32;
    return turned == should_turn && mode == wanted && scales && (uint64_t)scales % 16 == 0 && layout->rows % values == 0 &&
           layout->stride % values == 0;
}

double e4m3(uint8_t byte) {
    int exponent = byte >> 3 & 15, mantissa = byte & 7;
    double value = (byte & 127) == 127 ? NAN : exponent ? ldexp(8 + mantissa, exponent - 10) : ldexp(mantissa, -9);
    return byte & 128 ? -value : value;
}

double e2m1(int code) {
    const double magnitudes[8] = {0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0};
    return code & 8 ? -magnitudes[code & 7] : magnitudes[code & 7];
}

// Value (row, column) of a matrix with its scale: columns lie one after the other.
double value(const void *from, const Layout *layout, const void *scales, uint64_t row, uint64_t column) {
    uint64_t at = column * layout->stride + row;
    if (layout->type == E4M3) return e4m3(((const uint8_t *)from)[at]) * ((const float *)scales)[column];
    if (layout->type == E2M1) {
        uint64_t tile = column / 128 * ((layout->rows + 63) / 64) + row / 64;
        uint8_t scale = ((const uint8_t *)scales)[tile * 512 + column % 32 * 16 + column % 128 / 32 * 4 + row / 16 % 4];
        return e2m1(((const uint8_t *)from)[at / 2] >> at % 2 * 4 & 15) * e4m3(scale);
    }
    uint32_t bits = (uint32_t)((const uint16_t *)from)[at] << 16;
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

// To nearest, ties to even.
uint16_t bf16_of(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return x != x ? 0x7fff : (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}

template <class T> int make(T **place, T made) { return *place = new T(made), 0; }

} // namespace

extern "C" {

int cublasLtGetProperty(int which, int *value) { return *value = which == 0 ? 13 : 0, 0; }
int cublasLtCreate(int **handle) { return make(handle, 0); }
int cublasLtDestroy(int *handle) { return delete handle, 0; }

int cublasLtMatmulDescCreate(Description **place, int compute, int scale) {
    return compute == 68 && scale == 0 ? make(place, Description{}) : INVALID;
}

int cublasLtMatmulDescSetAttribute(Description *of, int which, const void *from, size_t bytes) {
    if ((which == 17 || which == 18) && bytes == 8) return memcpy(&of->scales[which - 17], from, bytes), 0;
    if (bytes != 4) return INVALID;
    if (which == 2) return memcpy(&of->pointer_mode, from, bytes), 0;
    if (which == 3 || which == 4) return memcpy(&of->turned[which - 3], from, bytes), 0;
    if (which == 31 || which == 32) return memcpy(&of->scale_modes[which - 31], from, bytes), 0;
    return INVALID;
}

int cublasLtMatmulDescDestroy(Description *of) { return delete of, 0; }

int cublasLtMatrixLayoutCreate(Layout **place, int type, uint64_t rows, uint64_t columns, int64_t stride) {
    return make(place, Layout{type, rows, columns, stride});
}

int cublasLtMatrixLayoutDestroy(Layout *of) { return delete of, 0; }

int cublasLtMatmulPreferenceCreate(Preference **place) { return make(place, Preference{0, 7, {256, 256, 256, 256}}); }

int cublasLtMatmulPreferenceSetAttribute(Preference *of, int which, const void *from, size_t bytes) {
    if (which == 1 && bytes == 8) return memcpy(&of->workspace, from, bytes), 0;
    if (which == 3 && bytes == 4) return memcpy(&of->reductions, from, bytes), 0;
    if (which >= 5 && which <= 8 && bytes == 4) return memcpy(&of->alignments[which - 5], from, bytes), 0;
    return INVALID;
}

int cublasLtMatmulPreferenceDestroy(Preference *of) { return delete of, 0; }

int cublasLtMatmulAlgoGetHeuristic(int *, const Description *product, const Layout *a, const Layout *b, const Layout *c,
                                   const Layout *d, const Preference *preference, int asked, Found *found, int *count) {
    uint64_t inner_a = product->turned[0] ? a->rows : a->columns, inner_b = product->turned[1] ? b->columns : b->rows;
    uint64_t rows = product->turned[0] ? a->columns : a->rows, columns = product->turned[1] ? b->rows : b->columns;
    bool wide = a->type == BF16 && product->scale_modes[0] == 0 && product->scale_modes[1] == 0;
    bool few_bits = (a->type == E4M3 || a->type == E2M1) && rows % 16 == 0 && d->stride % 4 == 0 &&
                    fits_few_bits(a, product->turned[0], true, product->scale_modes[0], product->scales[0]) &&
                    fits_few_bits(b, product->turned[1], false, product->scale_modes[1], product->scales[1]);
    bool right = product->pointer_mode == 1 && (wide || few_bits) && fits(a, a->type) && fits(b, a->type) && (fits(d, 0) || fits(d, BF16)) && c == d && asked >= 1 &&
                 inner_a == inner_b && rows == d->rows && columns == d->columns && preference->reductions == 2;
    if (!right) return INVALID;
    *found = Found{{product, a, b, d, preference->workspace, {}}, {}, preference->workspace, 0, 1.0f, {}};
    memcpy(found->algorithm.alignments, preference->alignments, sizeof preference->alignments);
    return *count = 1, 0;
}

int cublasLtMatmulAlgoConfigGetAttribute(const Algorithm *, int which, uint32_t *to, size_t bytes, size_t *written) {
    if (which != 1 || bytes != 4) return INVALID;
    return *to = 0, *written = 4, 0;
}

int cublasLtMatmul(int *, const Description *product, const float *alpha, const void *a, const Layout *of_a, const void *b,
                   const Layout *of_b, const float *beta, const void *c, const Layout *of_c, void *d, const Layout *of_d,
                   const Algorithm *algorithm, unsigned char *workspace, size_t bytes, void *) {
    bool known = algorithm->product == product && algorithm->a == of_a && algorithm->b == of_b && algorithm->d == of_d;
    if (!known || of_c != of_d) fail("a product that this algorithm was not chosen for");
    const void *places[4] = {a, b, c, d};
    for (int i = 0; i < 4; i++)
        if ((uint64_t)places[i] % algorithm->alignments[i] != 0) fail("a matrix begins at no multiple of what was said");
    if ((uint64_t)workspace % 256 != 0 || bytes < algorithm->workspace) fail("a workspace other than promised");
    memset(workspace, 0xff, bytes < 4096 ? bytes : 4096);
    memset(workspace + bytes - 4096, 0xff, 4096);
    bool turned_a = product->turned[0], turned_b = product->turned[1];
    uint64_t inner = turned_a ? of_a->rows : of_a->columns;
    for (uint64_t j = 0; j < of_d->columns; j++) {
        for (uint64_t i = 0; i < of_d->rows; i++) {
            double sum = 0.0;
            for (uint64_t k = 0; k < inner; k++)
                sum += value(a, of_a, product->scales[0], turned_a ? k : i, turned_a ? i : k) *
                       value(b, of_b, product->scales[1], turned_b ? j : k, turned_b ? k : j);
            uint64_t at = j * of_d->stride + i;
            float scaled = (float)sum * *alpha;
            if (of_d->type == BF16) {
                if (*beta != 0.0f) fail("narrow results that are added to");
                ((uint16_t *)d)[at] = bf16_of(scaled);
                continue;
            }
            ((float *)d)[at] = *beta == 0.0f ? scaled : scaled + *beta * ((const float *)c)[at];
        }
    }
    return 0;
}

} // extern "C"

// cuBLASLt's library, as far as `src/cublaslt/sys.rs` calls it: products of bf16 with f32 or bf16 results, one value after the
// other. What was described wrongly shows, or ends the program: sizes that do not fit each other, rows longer than what
// lies between them, addresses that do not begin where was said, a product of a shape that no algorithm was asked for.
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace {

struct Description {
    int pointer_mode, turned[2];
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

const int BF16 = 14, INVALID = 7;

[[noreturn]] void fail(const char *problem) {
    fprintf(stderr, "cuBLASLt: %s\n", problem);
    abort();
}

bool fits(const Layout *layout, int type) {
    return layout->type == type && layout->rows > 0 && layout->columns > 0 && layout->stride >= (int64_t)layout->rows;
}

// Value (i, j) of a matrix or, turned, (j, i): columns lie one after the other.
float value(const void *from, const Layout *layout, bool turned, uint64_t i, uint64_t j) {
    uint64_t row = turned ? j : i, column = turned ? i : j;
    uint32_t bits = (uint32_t)((const uint16_t *)from)[column * layout->stride + row] << 16;
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
    int value;
    if (bytes != sizeof value || which < 2 || which > 4) return INVALID;
    memcpy(&value, from, sizeof value);
    (which == 2 ? of->pointer_mode : of->turned[which - 3]) = value;
    return 0;
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
    bool right = product->pointer_mode == 1 && fits(a, BF16) && fits(b, BF16) && (fits(d, 0) || fits(d, BF16)) && c == d && asked == 1 &&
                 inner_a == inner_b && rows == d->rows && columns == d->columns && preference->reductions == 2;
    if (!right) return INVALID;
    *found = Found{{product, a, b, d, preference->workspace, {}}, {}, preference->workspace, 0, 1.0f, {}};
    memcpy(found->algorithm.alignments, preference->alignments, sizeof preference->alignments);
    return *count = 1, 0;
}

int cublasLtMatmul(int *, const Description *product, const float *alpha, const void *a, const Layout *of_a, const void *b,
                   const Layout *of_b, const float *beta, const void *c, const Layout *of_c, void *d, const Layout *of_d,
                   const Algorithm *algorithm, unsigned char *workspace, size_t bytes, void *) {
    bool known = algorithm->product == product && algorithm->a == of_a && algorithm->b == of_b && algorithm->d == of_d;
    if (!known || of_c != of_d || c != d) fail("a product that this algorithm was not chosen for");
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
                sum += (double)value(a, of_a, turned_a, i, k) * value(b, of_b, turned_b, k, j);
            uint64_t at = j * of_d->stride + i;
            float scaled = (float)sum * *alpha;
            if (of_d->type == BF16) {
                if (*beta != 0.0f) fail("narrow results that are added to");
                ((uint16_t *)d)[at] = bf16_of(scaled);
                continue;
            }
            float *to = (float *)d + at;
            *to = *beta == 0.0f ? scaled : scaled + *beta * *to;
        }
    }
    return 0;
}

} // extern "C"

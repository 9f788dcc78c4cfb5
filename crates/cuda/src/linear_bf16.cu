// Products with bf16 weights; see product.cuh.
#include "product.cuh"

PRODUCTS(BF16, bf16)

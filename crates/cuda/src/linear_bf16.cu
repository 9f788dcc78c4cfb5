// Products with bf16 weights; see product.cuh and few_tokens.cuh.
#include "few_tokens.cuh"

PRODUCTS(BF16, bf16)
FEW_TOKENS(BF16, bf16)

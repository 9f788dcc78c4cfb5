// Products with int8 weights; see product.cuh and few_tokens.cuh.
#include "few_tokens.cuh"

PRODUCTS(INT8, int8)
FEW_TOKENS(INT8, int8)

// Products with nvfp4 weights; see product.cuh and few_tokens.cuh.
#include "few_tokens.cuh"

PRODUCTS(NVFP4, nvfp4)
FEW_TOKENS(NVFP4, nvfp4)

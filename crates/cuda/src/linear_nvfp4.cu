// Products with nvfp4 weights; see product.cuh.
#include "product.cuh"

PRODUCTS(NVFP4, nvfp4)

// All kernels, as one image.
#include "device/kernels/attention.cu"
#include "device/kernels/attention_prompt.cu"
#include "device/kernels/attention_tensor.cu"
#include "device/kernels/copy.cu"
#include "device/kernels/multiply.cu"
#include "device/kernels/multiply_tensor.cu"
#include "device/kernels/rows.cu"
#include "device/kernels/sample.cu"

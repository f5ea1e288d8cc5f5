// Declares the kernels of the forward pass (kernels/*.cu): names, grids, arguments. Plain C
// declarations, shared by nvcc and the host compiler.
//
// T stands for each of _f32, _f16 and _bf16. Matrices are dense, row after row. The kernels that
// are not called fast compute the same bits as lib/model's on the CPU, whatever is computed
// together (model/kernels/kernels.h).
//
// A layer's KV lies in blocks of [2][kv_head][token][head_dim]. Position p of a sequence is in the
// block at kv + table[sequence x table_width + p / block_tokens] + layer_offset, in bytes.
//
// Thread: any.
#pragma once
#include <stdint.h>
#include <string.h>

#define MC_KERNEL_THREADS 128  // of a group, in all but mc_sample
#define MC_HEAD_DIM_MAX 1024

// A row of activations: which token, where in which sequence.
struct mc_row {
  int32_t token;
  uint32_t position, sequence;
  uint32_t masked;  // the tokens that end an answer must not come
};

// How a row's next token is drawn, as model::Draw; `bits` are its bits().
struct mc_draw {
  double temperature, top_p;
  uint64_t bits;
  uint32_t top_k, unused;
};

// x[row] = table[token of the row], as f32. Grid: rows.
// mc_embed_T(const T* table, const mc_row* rows, float* x, uint32_t hidden)
#define MC_EMBED "mc_embed"

// out = x / rms(x) x weight. Grid: rows. _f16 and _bf16 are fast: all threads sum a row, in an
// order that depends on n alone. mc_normalize_T(const float* x, const float* weight, T* out,
// uint32_t n, double eps)
#define MC_NORMALIZE "mc_normalize"

// y[r][o] = sum over k of x[r][k] w[o][k] (+ y[r][o], if `add`), the k cut into `segments` equal
// parts, each summed from zero. Grid: outputs / MC_PLAIN_OUTPUTS, rows / MC_PLAIN_ROWS, rounded up.
// mc_multiply_T(const T* w, const float* x, float* y, uint32_t outputs, uint32_t k, uint32_t rows,
// uint32_t segments, uint32_t add)
#define MC_MULTIPLY "mc_multiply"
#define MC_PLAIN_OUTPUTS MC_KERNEL_THREADS
#define MC_PLAIN_ROWS 8

// The same on the tensor cores, without segments, of x in the format of w; fast, and not the CPU's
// bits. k is a multiple of 8, w and x are aligned to 16 bytes. _f16 and _bf16. Grid: outputs /
// MC_TENSOR_OUTPUTS, rows / MC_TENSOR_ROWS, rounded up.
// mc_tensor_T(const T* w, const T* x, float* y, uint32_t outputs, uint32_t k, uint32_t rows,
// uint32_t add)
#define MC_TENSOR "mc_tensor"
#define MC_TENSOR_OUTPUTS 128
#define MC_TENSOR_ROWS 64

// out = x, rounded. _f16 and _bf16. Grid: n / MC_ROUND_PART rounded up.
// mc_round_T(const float* x, T* out, uint64_t n)
#define MC_ROUND "mc_round"
#define MC_ROUND_PART 1024

// Adds bias (as long as a row; null: none) to the rows, turns their queries and keys in place, and
// writes keys and values into their blocks as T. A row of qkv is heads queries, kv_heads keys,
// kv_heads values; turns[row][pair] cosine and sine. A pair is (j, j + dim / 2), or (2j, 2j + 1) if
// `neighbours`. Grid: rows.
// mc_store_T(float* qkv, const float* bias, const mc_row* rows, const float* turns, char* kv, const
// uint64_t* table, uint32_t table_width, uint64_t layer_offset, uint32_t heads, uint32_t kv_heads,
// uint32_t dim, uint32_t block_tokens, uint32_t neighbours)
#define MC_STORE "mc_store"

// out[row][head][dim] = attention of the row's queries to positions 0 up to its own. Grid: rows,
// heads.
// mc_attend_T(const float* qkv, float* out, const mc_row* rows, const char* kv, const uint64_t*
// table, uint32_t table_width, uint64_t layer_offset, uint32_t heads, uint32_t kv_heads, uint32_t
// dim, uint32_t block_tokens, float scale)
#define MC_ATTEND "mc_attend"

// The same on the tensor cores, for KV of 16 bits, heads / kv_heads up to MC_TENSOR_HEADS, and a
// dim that MC_TENSOR_DIM_STEP divides, up to MC_TENSOR_DIM_MAX. `together` rows of one sequence
// share a group, up to MC_TENSOR_HEADS queries; rows of several sequences: 1. Grid: row_count /
// together rounded up, kv_heads, and 1 with parts null. Or, the splits side by side, with a grid of
// the splits of the longest context, parts[row][head][splits][dim + 2]; then mc_combine.
// mc_flash_T(const float* qkv, float* out, float* parts, const mc_row* rows, char* kv, const
// uint64_t* table, uint32_t table_width, uint64_t layer_offset, uint32_t heads, uint32_t kv_heads,
// uint32_t dim, uint32_t block_tokens, float scale, uint32_t row_count, uint32_t together)
#define MC_FLASH "mc_flash"
#define MC_SPLIT 256  // positions
#define MC_TENSOR_HEADS 16
#define MC_TENSOR_DIM_STEP 32
#define MC_TENSOR_DIM_MAX 128

// What mc_flash_T gives for rows of one sequence, bit for bit, by groups of `together` rows with up
// to MC_PROMPT_QUERIES queries: for prompts. Grid: row_count / together rounded up, kv_heads.
// mc_prompt_T(const float* qkv, float* out, const mc_row* rows, char* kv, const uint64_t* table,
// uint32_t table_width, uint64_t layer_offset, uint32_t heads, uint32_t kv_heads, uint32_t dim,
// uint32_t block_tokens, float scale, uint32_t row_count, uint32_t together)
#define MC_PROMPT "mc_prompt"
#define MC_PROMPT_QUERIES 64

// Grid: rows, heads.
// mc_combine(const float* parts, float* out, const mc_row* rows, uint32_t dim, uint32_t splits)
#define MC_COMBINE "mc_combine"

// out[row][i] = silu(gate) x up; a row of gate_up is n gates, then n ups. Grid: rows, n /
// MC_GATE_PART rounded up.
// mc_gate_T(const float* gate_up, T* out, uint32_t n)
#define MC_GATE "mc_gate"
#define MC_GATE_PART 512

// The next token of each row (model/forward/sampler.h): the likeliest, the lowest among equals, or
// one drawn by the row's mc_draw; of masked rows, none of `ends`. Grid: rows. mc_sample(const
// float* logits, const mc_row* rows, const mc_draw* draws, const int32_t* ends, uint32_t
// ends_count, int32_t* tokens, uint32_t vocab)
#define MC_SAMPLE "mc_sample"
#define MC_SAMPLE_THREADS 1024

// How many threads a group of the kernel has.
static inline unsigned mc_group_threads(const char* kernel) {
  return strcmp(kernel, MC_SAMPLE) == 0 ? MC_SAMPLE_THREADS : MC_KERNEL_THREADS;
}

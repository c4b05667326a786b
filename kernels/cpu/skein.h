/* The complete native interface of the CPU backend. There is one library per ISA level, and each
 * exports exactly this.
 *
 * Letters in shapes: T tokens of the ragged batch, B rows, C channels, H heads, N head size, V
 * vocabulary, L layers, R logit rows, S samples. All tensors are f32, row-major, without padding.
 * Nothing here throws or aborts: functions return a status (or null), and sk_last_error() gives the
 * reason in the calling thread. A context frees everything that was made from it.
 *
 * Only one thread at a time may use a context. Pointers passed to sk_program_run are used
 * until the step is over; pointers passed to sk_record_* must live as long as the program. */
#ifndef SKEIN_H
#define SKEIN_H

#include <stdint.h>

#if defined(_WIN32)
#define SK_API __declspec(dllexport)
#else
#define SK_API __attribute__((visibility("default")))
#endif
#define SK_MAX_TOP_LOGPROBS 20
#define SK_SAMPLE_INTS 8

#ifdef __cplusplus
extern "C" {
#endif

/* Changes with every incompatible change of this file. The caller refuses any other version. */
#define SK_ABI_VERSION 12

/* SK_INVALID: a rule of this file was broken. SK_UNSUPPORTED: such a model cannot be run. */
typedef enum {
  SK_OK = 0,
  SK_INVALID = 1,
  SK_NO_MEMORY = 2,
  SK_INTERNAL = 3,
  SK_UNSUPPORTED = 4
} sk_status;
/* From SK_Q4_0 on: GGUF's block formats of the same name. */
typedef enum {
  SK_F32 = 0,
  SK_F16 = 1,
  SK_BF16 = 2,
  SK_I8 = 3,
  SK_Q4 = 4,
  SK_NF4 = 5,
  SK_Q4_0 = 6,
  SK_Q4_1 = 7,
  SK_Q5_0 = 8,
  SK_Q5_1 = 9,
  SK_Q8_0 = 10,
  SK_Q4_K = 11,
  SK_Q5_K = 12,
  SK_Q6_K = 13
} sk_type;
typedef enum {
  SK_NONE = 0,
  SK_TANH = 1,
  SK_SIGMOID = 2,
  SK_RELU2 = 3,
  SK_ADD = 4 /* y += x·Wᵀ (+ bias) */
} sk_epilogue;

typedef struct sk_context sk_context;     /* thread pool, and owner of everything below */
typedef struct sk_matrix sk_matrix;       /* packed weights */
typedef struct sk_table sk_table;         /* embedding rows */
typedef struct sk_states sk_states;       /* recurrent states of all slots */
typedef struct sk_penalties sk_penalties; /* tokens seen per slot */
typedef struct sk_program sk_program;     /* recorded ops */

SK_API int32_t sk_abi_version(void);
/* Status and message of the last error in this thread. */
SK_API int32_t sk_last_status(void);
SK_API const char* sk_last_error(void);

/* A number that changes while anything is computed in this process: with every item of work that
 * begins. Any thread may ask, at any time. */
SK_API uint32_t sk_progress(void);

SK_API sk_context* sk_context_new(int32_t threads);
SK_API void sk_context_free(sk_context* context);

/* `count` zeros, aligned to 64 bytes. */
SK_API float* sk_tensor_new(sk_context* context, int64_t count);
SK_API void sk_tensor_write(float* tensor, int64_t start, const float* values, int64_t count);
SK_API void sk_tensor_read(const float* tensor, int64_t start, float* values, int64_t count);

/* W [rows, columns] of y = x·Wᵀ. Filled by packing blocks of rows: first_row is a multiple of 64,
 * and so is num_rows except in the last block. values: [num_rows, columns] of source_type (f32, f16
 * or bf16), little-endian. */
SK_API sk_matrix* sk_matrix_new(sk_context* context, int64_t rows, int64_t columns, int32_t type);
SK_API int32_t sk_matrix_pack(sk_matrix* matrix, int64_t first_row, int64_t num_rows,
                              int32_t source_type, const void* values);
/* Like sk_matrix_pack, from rows that sk_quantise has rounded to the matrix's type. */
SK_API int32_t sk_matrix_pack_quantised(sk_matrix* matrix, int64_t first_row, int64_t num_rows,
                                        const void* values, const uint16_t* scales);
/* Like sk_matrix_pack, from rows of GGUF's blocks of the matrix's type, as the file has them. */
SK_API int32_t sk_matrix_pack_blocks(sk_matrix* matrix, int64_t first_row, int64_t num_rows,
                                     const void* blocks);
SK_API int64_t sk_matrix_bytes(const sk_matrix* matrix);

/* Rounds rows to SK_I8, SK_Q4 or SK_NF4, row-major without padding. values: i8 [rows, columns];
 * otherwise [rows, columns / 2 rounded up] with the even input of a pair in the low half, q4 as
 * value + 8, nf4 as code. scales: bf16 [rows, columns / 32 (nf4: 64) rounded up]. */
SK_API int32_t sk_quantise(sk_context* context, int32_t type, int64_t rows, int64_t columns,
                           int32_t source_type, const void* source, void* values, uint16_t* scales);

/* Rows of f32, f16, bf16 or GGUF's blocks, as the file has them. */
SK_API sk_table* sk_table_new(sk_context* context, int64_t rows, int64_t columns, int32_t type);
SK_API int32_t sk_table_write(sk_table* table, int64_t first_row, int64_t num_rows,
                              const void* values);
SK_API int64_t sk_table_bytes(const sk_table* table);

/* shift [L, 2, C]; wkv [L, H, N, N] with row = value channel, column = key channel. N is a multiple
 * of 16. */
SK_API sk_states* sk_states_new(sk_context* context, int32_t layers, int32_t channels,
                                int32_t heads, int32_t head_size, int32_t num_slots);
SK_API int64_t sk_states_bytes_per_slot(const sk_states* states);
SK_API int32_t sk_states_clear(sk_states* states, int32_t slot);
SK_API int32_t sk_states_poison(sk_states* states, int32_t slot);
SK_API int32_t sk_states_copy(sk_states* states, int32_t from, int32_t to);
/* Reads or writes num_layers layers from first_layer on. shift and wkv point to arrays of a whole
 * state. */
SK_API int32_t sk_states_read(const sk_states* states, int32_t slot, int32_t first_layer,
                              int32_t num_layers, float* shift, float* wkv);
SK_API int32_t sk_states_write(sk_states* states, int32_t slot, int32_t first_layer,
                               int32_t num_layers, const float* shift, const float* wkv);

SK_API sk_penalties* sk_penalties_new(sk_context* context, int32_t vocab, int32_t num_slots);
SK_API int32_t sk_penalties_reset(sk_penalties* penalties, int32_t slot, const int32_t* tokens,
                                  int32_t count);

SK_API sk_program* sk_program_new(sk_context* context, int32_t tokens, int32_t rows, int32_t logits,
                                  int32_t samples);
SK_API void sk_program_free(sk_program* program);

/* One recorder per op; src/backend/backend.ts has the formulas. Tensors have room for the program's
 * capacity of tokens (gather_norm's out and logits: of logit rows). */
SK_API int32_t sk_record_embed(sk_program* program, float* x /* [T,C] */, const sk_table* table,
                               const float* norm_weight /* [C] */, const float* norm_bias /* [C] */,
                               float eps);
SK_API int32_t sk_record_shift_mix(sk_program* program, int32_t num_out,
                                   float* const* out /* num_out × [T,C] */,
                                   const float* x /* [T,C] */, const float* norm_weight,
                                   const float* norm_bias, float eps,
                                   const float* const* mix /* num_out × [C] */, sk_states* states,
                                   int32_t layer, int32_t which);
/* Job i: y[i] [T, rows] = epilogue[i](x[i] [T, columns]·weight[i]ᵀ + bias[i] [rows] or null). */
SK_API int32_t sk_record_linear(sk_program* program, int32_t num_jobs, float* const* y,
                                const float* const* x, const sk_matrix* const* weight,
                                const float* const* bias, const int32_t* epilogue);
/* r k v w a g v_gate (null in the first layer) v_first out: [T,C]; k_k k_a r_k ln_weight ln_bias:
 * [C]. */
SK_API int32_t sk_record_wkv7(sk_program* program, float* out, const float* r, const float* k,
                              const float* v, const float* w, const float* a, const float* g,
                              const float* v_gate, float* v_first, const float* k_k,
                              const float* k_a, const float* r_k, const float* ln_weight,
                              const float* ln_bias, float ln_eps, sk_states* states, int32_t layer);
/* In place: mix[i] [T,C] = h + (prev − h)·(base[i] [C] + mix[i]). */
SK_API int32_t sk_record_ddlerp(sk_program* program, int32_t num_mix, float* const* mix,
                                const float* h, const float* prev, const float* const* base,
                                int32_t channels);
/* r k v w g out: [T,C]; u ln_weight ln_bias: [C]. */
SK_API int32_t sk_record_wkv6(sk_program* program, float* out, const float* r, const float* k,
                              const float* v, const float* w, const float* g, const float* u,
                              const float* ln_weight, const float* ln_bias, float ln_eps,
                              sk_states* states, int32_t layer);
/* table [V,S·S] · s2 [S,F] · s0 [F], S = side at most 64 */
SK_API int32_t sk_record_deep_embed(sk_program* program, float* u /* [T,F] */,
                                    const float* low /* [T,S] */, const float* own /* [T,S·S] */,
                                    const sk_table* table, const float* s2, const float* s0,
                                    int32_t channels, int32_t side);
/* x += gate·value, all [T,C]. */
SK_API int32_t sk_record_gated_add(sk_program* program, float* x, const float* gate,
                                   const float* value, int32_t channels);
SK_API int32_t sk_record_gather_norm(sk_program* program, float* out /* [R,C] */,
                                     const float* x /* [T,C] */, int32_t channels,
                                     const float* norm_weight, const float* norm_bias, float eps);
SK_API int32_t sk_record_logits(sk_program* program, float* y /* [R,V] */,
                                const float* x /* [R,C] */, const sk_matrix* weight);
SK_API int32_t sk_record_sample(sk_program* program, const float* logits /* [R,V] */,
                                sk_penalties* penalties);

/* Begins a step: runs the recorded ops for one batch. The context's other threads work on it at once.
 * Until sk_program_finish returns the arrays stay as they are, and nothing else of the context may
 * be called. `Batch` in batch.ts documents the fields. num_bias is the length of the bias arrays,
 * num_masks the number of rows of masks. */
SK_API int32_t sk_program_run(sk_program* program, int32_t num_tokens, int32_t num_rows,
                              int32_t num_logits, int32_t num_samples, int32_t num_bias,
                              int32_t num_masks, const int32_t* tokens, const int32_t* starts,
                              const int32_t* slots, const int32_t* logit_rows,
                              const int32_t* blend_counts, const float* blend_weights,
                              const int32_t* sample_row, const int32_t* sample_slot,
                              const float* sample_floats, const int32_t* sample_ints,
                              const int32_t* bias_starts, const int32_t* bias_ids,
                              const float* bias_values, const uint32_t* masks, int32_t* sampled,
                              float* sampled_logprob, int32_t* top_ids, float* top_logprobs);

/* Works on the step that sk_program_run has begun, as the other threads do, until it is over. */
SK_API int32_t sk_program_finish(sk_program* program);

/* Of each row of logits [rows, V], from any device: the log-probability of tokens[row], and the
 * `wanted` best ids with theirs, best first, ties by id. All of a row are NaN when it has a NaN or
 * +inf, or nothing finite. */
SK_API int32_t sk_logprobs(const float* logits, int64_t rows, int32_t vocab, const int32_t* tokens,
                           int32_t wanted, double* logprobs /* [rows] */,
                           int32_t* top_ids /* [rows, wanted] */,
                           double* top_logprobs /* [rows, wanted] */);

/* For benchmarks and tests. sk_bench_read: seconds to read `bytes` from memory once with all
 * threads, best of `repeats`. sk_bench_fma: f32 FMA operations per second of all threads, a
 * multiply and an add counted as two. sk_vector_function: `which` is 0 exp, 1 sigmoid, 2 tanh. */
SK_API double sk_bench_read(sk_context* context, int64_t bytes, int32_t repeats);
SK_API double sk_bench_fma(sk_context* context, int32_t repeats);
SK_API void sk_vector_function(int32_t which, const float* x, float* y, int64_t count);

#ifdef __cplusplus
}
#endif
#endif

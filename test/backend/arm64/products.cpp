// products LIBRARY [level]: the level of a machine by kernels/machine, or what a library of kernels/cpu computes for products of every type of weights, a line each with a hash
// of all bits. Inputs are the same on every machine. Compiled and run by test/backend/arm64.test.ts.
#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "packed.h"
#include "skein.h"

namespace {

void* library;

template <class Function>
Function* function(const char* name) {
  void* found = dlsym(library, name);
  if (found == nullptr) fprintf(stderr, "no %s\n", name), exit(1);
  return reinterpret_cast<Function*>(found);
}

#define CALL(name, ...) function<decltype(name)>(#name)(__VA_ARGS__)

void check(bool is_good, const char* what) {
  if (is_good) return;
  fprintf(stderr, "%s: %s\n", what, CALL(sk_last_error));
  exit(1);
}

uint32_t state = 1;
uint32_t draw() { return (state = state * 1664525u + 1013904223u) >> 8; }
float number() { return static_cast<float>(draw() % 4001) / 2000.0f - 1.0f; }

std::vector<float> numbers(int64_t count) {
  std::vector<float> all(count);
  for (float& x : all) x = number();
  return all;
}

void put(uint8_t* at, uint16_t bits) { memcpy(at, &bits, 2); }

// Random blocks of GGUF with scales that are finite, some of them denormal.
std::vector<uint8_t> blocks_of(int32_t type, int64_t rows, int64_t columns) {
  const skein::PackedFormat format = skein::packed_format(type);
  std::vector<uint8_t> all(rows * skein::packed_row_bytes(type, columns));
  for (uint8_t& byte : all) byte = static_cast<uint8_t>(draw());
  for (size_t at = 0; at < all.size(); at += format.bytes) {
    const uint16_t scale = draw() % 8 == 0 ? draw() % 0x400 : 0x2000 + draw() % 0x800;
    put(&all[at + format.scale_at], scale);
    if (format.minimum != 0) put(&all[at + format.minimum_at], 0x2000 + draw() % 0x800);
  }
  return all;
}

// x [tokens, columns] · W [rows, columns], or, with inner, relu² of it by a matrix of its type first.
void run(int32_t type, int64_t rows, int64_t columns, int32_t tokens, bool is_sparse) {
  sk_context* context = CALL(sk_context_new, 2);
  const auto matrix = [&](int64_t outputs, int64_t inputs) {
    sk_matrix* made = CALL(sk_matrix_new, context, outputs, inputs, type);
    check(made != nullptr, "matrix");
    const int32_t status =
        type >= SK_Q4_0
            ? CALL(sk_matrix_pack_blocks, made, 0, outputs, blocks_of(type, outputs, inputs).data())
            : CALL(sk_matrix_pack, made, 0, outputs, SK_F32, numbers(outputs * inputs).data());
    check(status == SK_OK, "pack");
    return made;
  };
  float* x = CALL(sk_tensor_new, context, tokens * columns);
  float* u = CALL(sk_tensor_new, context, tokens * columns);
  float* y = CALL(sk_tensor_new, context, tokens * rows);
  CALL(sk_tensor_write, x, 0, numbers(tokens * columns).data(), tokens * columns);
  sk_program* program = CALL(sk_program_new, context, tokens, 1, 1, 1);
  const float* none = nullptr;
  const auto record = [&](float* to, const float* from, const sk_matrix* weight, int32_t epilogue) {
    check(CALL(sk_record_linear, program, 1, &to, &from, &weight, &none, &epilogue) == SK_OK, "record");
  };
  if (is_sparse) record(u, x, matrix(columns, columns), SK_RELU2);
  record(y, is_sparse ? u : x, matrix(rows, columns), SK_NONE);
  const std::vector<int32_t> ids(tokens);
  const int32_t starts[] = {0, tokens}, zeros[8] = {};
  const float floats[8] = {};
  int32_t out[8];
  float more[8];
  check(CALL(sk_program_run, program, tokens, 1, 0, 0, 0, 0, ids.data(), starts, zeros, zeros, zeros, floats, zeros,
             zeros, floats, zeros, zeros, zeros, floats, nullptr, out, more, out, more) == SK_OK,
        "run");
  check(CALL(sk_program_finish, program) == SK_OK, "finish");
  std::vector<float> found(tokens * rows);
  CALL(sk_tensor_read, y, 0, found.data(), tokens * rows);
  uint64_t hash = 14695981039346656037u;
  for (const float value : found) {
    uint32_t bits;
    memcpy(&bits, &value, 4);
    hash = (hash ^ bits) * 1099511628211u;
  }
  printf("type %d, %d tokens%s: %016llx, first %g\n", type, tokens, is_sparse ? " of zeros" : "",
         static_cast<unsigned long long>(hash), static_cast<double>(found[0]));
  CALL(sk_context_free, context);
}

}  // namespace

int main(int count, char** arguments) {
  library = dlopen(arguments[1], RTLD_LAZY);
  if (library == nullptr) return fprintf(stderr, "%s\n", dlerror()), 1;
  if (count > 2) return printf("%d\n", function<int32_t()>("sk_machine_level")()), 0;
  for (int32_t type = SK_F32; type <= SK_Q6_K; type++)
    for (const int32_t tokens : {1, 2, 3, 5, 8, 33}) {
      state = 1;
      // Rows that are no whole block, of two groups of every type.
      run(type, 72, 512, tokens, false);
      if (tokens < 3) run(type, 72, 256, tokens, true);
    }
}

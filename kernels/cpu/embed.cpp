// x[t] = LN(table[tokens[t]]).
#include "convert.h"
#include "norm.h"
#include "program.h"
#include "table.h"

namespace skein {

namespace {

struct Embed final : Command {
  float* x;  // [T, C]
  const sk_table* table;
  Norm norm;

  void check(const Batch& batch) const override {
    for (int32_t t = 0; t < batch.num_tokens; t++) {
      require(batch.tokens[t] >= 0 && batch.tokens[t] < table->rows,
              "token id outside the embedding table");
    }
  }

  int64_t items(const Batch& batch, int) const override { return batch.num_tokens; }

  void run(const Batch& batch, int64_t t, int, int) override {
    const int64_t channels = table->columns;
    float* row = x + t * channels;
    const uint8_t* stored = table->data.as<uint8_t>() + batch.tokens[t] * table->row_bytes();
    if (is_packed(table->type)) {
      unpack_row(table->type, stored, row, channels);
    } else {
      to_floats(table->type, stored, row, channels);
    }
    normalise(row, row, moments(row, channels, norm.eps), norm, 0, channels);
  }
};

}  // namespace

}  // namespace skein

using namespace skein;

extern "C" {

sk_table* sk_table_new(sk_context* context, int64_t rows, int64_t columns, int32_t type) {
  return guard_pointer([&] {
    require(rows > 0 && columns > 0, "a table needs rows and columns");
    require((type >= SK_F32 && type <= SK_BF16) || (is_packed(type) && type <= SK_Q6_K),
            "a table must be f32, f16, bf16 or packed blocks");
    require(!is_packed(type) || columns % packed_format(type).inputs == 0,
            "rows of packed weights must be whole blocks");
    auto table = std::make_unique<sk_table>();
    *table = {rows, columns, type, {}};
    table->data = Buffer(static_cast<size_t>(rows * table->row_bytes()));
    return context->keep(std::move(table));
  });
}

int32_t sk_table_write(sk_table* table, int64_t first_row, int64_t num_rows, const void* values) {
  return guard([&] {
    require(first_row >= 0 && num_rows >= 0 && first_row + num_rows <= table->rows,
            "table rows out of range");
    std::memcpy(table->data.as<uint8_t>() + first_row * table->row_bytes(), values,
                static_cast<size_t>(num_rows * table->row_bytes()));
  });
}

int64_t sk_table_bytes(const sk_table* table) { return table->rows * table->row_bytes(); }

int32_t sk_record_embed(sk_program* program, float* x, const sk_table* table,
                        const float* norm_weight, const float* norm_bias, float eps) {
  return guard([&] {
    auto command = std::make_unique<Embed>();
    command->x = x;
    command->table = table;
    command->norm = {norm_weight, norm_bias, eps};
    program->commands.push_back(std::move(command));
  });
}

}  // extern "C"

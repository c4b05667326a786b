// An embedding table in the type of its source.
#pragma once

#include "packed.h"

struct sk_table {
  int64_t rows, columns;
  int32_t type;
  skein::Buffer data;  // [rows, columns] of type

  int64_t row_bytes() const {
    if (skein::is_packed(type)) return skein::packed_row_bytes(type, columns);
    return columns * (type == SK_F32 ? 4 : 2);
  }
};

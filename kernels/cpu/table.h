// An embedding table in its source type.
#pragma once

#include "memory.h"
#include "skein.h"

struct sk_table {
  int64_t rows, columns;
  int32_t type;
  skein::Buffer data;  // [rows, columns] of type

  int64_t row_bytes() const { return columns * (type == SK_F32 ? 4 : 2); }
};

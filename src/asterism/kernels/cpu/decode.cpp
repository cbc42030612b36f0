#include "decode.hpp"
#include "units.hpp"

ASTERISM_WITHIN void decode(const Slots& slots) {
  if (slots.is_bfloat16)
    Decode<uint16_t>(slots).run();
  else
    Decode<float>(slots).run();
}

ASTERISM_WITHIN int32_t threads_for(const Slots& s) {
  const int64_t bytes = s.batch * s.kv_heads * s.n_slots * (s.dim + s.value_dim) * (s.is_bfloat16 ? 2 : 4);
  const int64_t rows = s.heads / s.kv_heads * s.n_queries;
  return bytes * ((rows + kRowsTogether - 1) / kRowsTogether) < kAlone ? 1 : s.threads;
}

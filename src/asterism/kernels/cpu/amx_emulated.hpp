// The instructions of AMX as plain C++, after Intel's pseudocode (Software Developer's Manual, TDPBF16PS), for tests.

#pragma once

#include <atomic>
#include <cstdint>
#include <cstring>
#include <stdexcept>

#include "vectors.hpp"

namespace {
namespace amx {

// What a thread's matrix unit holds. Its registers are gone when it is released, and poison until they are loaded.
typedef float Register[16][16];
struct Unit {
  bool configured = false;
  alignas(64) Register registers[8];
};
thread_local Unit unit;

enum Instruction { kLoad, kStore, kMultiplyAdd, kInstructions };
std::atomic<int64_t> executed[kInstructions];  // since the library was loaded

inline Register& used(int number, Instruction instruction) {
  if (!unit.configured) throw std::logic_error("an instruction of AMX without a configuration");
  executed[instruction].fetch_add(1, std::memory_order_relaxed);
  return unit.registers[number];
}

template <int kRegister>
inline void load(const float* from, int64_t row_bytes) {
  auto& to = used(kRegister, kLoad);
  for (int i = 0; i < 16; ++i) std::memcpy(to[i], reinterpret_cast<const char*>(from) + i * row_bytes, 64);
}

template <int kRegister>
inline void store(float* to, int64_t row_bytes) {
  const auto& from = used(kRegister, kStore);
  for (int i = 0; i < 16; ++i) std::memcpy(reinterpret_cast<char*>(to) + i * row_bytes, from[i], 64);
}

inline __m512 low_half(__m512i pairs) { return _mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16)); }
inline __m512 high_half(__m512i pairs) {
  return _mm512_castsi512_ps(_mm512_and_si512(pairs, _mm512_set1_epi32(static_cast<int32_t>(0xffff0000))));
}

// Kept out of line, so that no arithmetic leaves the stretch in which multiply_add has set the control register.
__attribute__((noinline)) inline void multiply_add(Register& c, const Register& a, const Register& b) {
  for (int m = 0; m < 16; ++m) {
    __m512 even = _mm512_setzero_ps(), odd = _mm512_setzero_ps();
    for (int k = 0; k < 16; ++k) {
      int32_t pair;
      std::memcpy(&pair, &a[m][k], 4);
      const __m512i left = _mm512_set1_epi32(pair), right = _mm512_loadu_si512(b[k]);
      even = _mm512_fmadd_ps(low_half(left), low_half(right), even);
      odd = _mm512_fmadd_ps(high_half(left), high_half(right), odd);
    }
    _mm512_storeu_ps(c[m], _mm512_add_ps(_mm512_loadu_ps(c[m]), _mm512_add_ps(even, odd)));
  }
}

// Denormal numbers are 0, and rounding is to the nearest even, whatever the control register says.
template <int kC, int kA, int kB>
inline void multiply_add() {
  const unsigned before = _mm_getcsr();
  _mm_setcsr(0x1f80 | 0x8000 | 0x0040);  // all exceptions masked, flush to zero, denormals are zero
  multiply_add(used(kC, kMultiplyAdd), unit.registers[kA], unit.registers[kB]);
  _mm_setcsr(before);
}

// Eight registers of 16 rows of 64 bytes are all that is emulated; what the processor would refuse is refused.
inline void configure(const void* configuration) {
  const auto* bytes = static_cast<const uint8_t*>(configuration);
  for (int i = 0; i < 64; ++i) {
    const bool is_width = i >= 16 && i < 32 && i % 2 == 0, is_rows = i >= 48 && i < 56;
    const int wanted = i == 0 ? 1 : is_width ? 64 : is_rows ? 16 : 0;  // palette 1, numbers of 16 bits, then of 8
    if (bytes[i] != wanted) throw std::logic_error("a configuration of AMX that is not emulated");
  }
  unit.configured = true;
  std::memset(unit.registers, 0xff, sizeof(unit.registers));
}
inline void release() { unit.configured = false; }
inline bool is_permitted() { return true; }

}  // namespace amx
}  // namespace

// How many loads, stores and products were executed.
extern "C" void asterism_emulated_instructions(int64_t* counts) {
  for (int i = 0; i < amx::kInstructions; ++i) counts[i] = amx::executed[i];
}

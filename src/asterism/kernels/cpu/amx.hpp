// Intel's matrix unit (AMX): registers of 16 rows of 64 bytes, products of two of them in bfloat16, and who may use it.
//
// With -DASTERISM_EMULATED_TILES the instructions are plain C++ that does the same arithmetic (amx_emulated.hpp), so
// that what is built on them can be tested on any machine with AVX-512 for bfloat16.

#pragma once

#include <cstdint>

#include "products.hpp"

#if defined(__AVX512BF16__) && defined(__AVX512DQ__) && defined(__AVX512BW__) && defined(ASTERISM_EMULATED_TILES)
#define ASTERISM_AMX "amx (emulated)"
#include "amx_emulated.hpp"
#elif defined(__AVX512BF16__) && defined(__AMX_TILE__) && defined(__AMX_BF16__) && defined(__linux__)
#define ASTERISM_AMX "amx"
#include <sys/syscall.h>
#include <unistd.h>

namespace {
namespace amx {

// Assembly of our own: gcc 12's intrinsics do not say that they touch memory, so that stores move past the loads of
// what they store. Registers are named in the instruction, rows are `row_bytes` apart.
template <int kRegister>
inline void load(const float* from, int64_t row_bytes) {
  asm volatile("tileloadd (%1,%2,1), %%tmm%c0" ::"i"(kRegister), "r"(from), "r"(row_bytes) : "memory");
}

template <int kRegister>
inline void store(float* to, int64_t row_bytes) {
  asm volatile("tilestored %%tmm%c0, (%1,%2,1)" ::"i"(kRegister), "r"(to), "r"(row_bytes) : "memory");
}

// C += A B: rows of A hold pairs along k, rows of B the pairs of one pair of k for 16 columns.
template <int kC, int kA, int kB>
inline void multiply_add() {
  asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(kC), "i"(kA), "i"(kB));
}

inline void configure(const void* configuration) { asm volatile("ldtilecfg (%0)" ::"r"(configuration) : "memory"); }
inline void release() { asm volatile("tilerelease" ::: "memory"); }

// Whether the system lets this process use the unit. Without its leave the first instruction ends the process, and
// loading a configuration does not tell: so it is asked, once, and then asked what it gave.
inline bool is_permitted() {
  static const bool permitted = [] {
    constexpr long kAsk = 0x1023, kTell = 0x1022, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, ARCH_GET_XCOMP_PERM
    unsigned long given = 0;
    if (syscall(SYS_arch_prctl, kAsk, kTileData) != 0 || syscall(SYS_arch_prctl, kTell, &given) != 0) return false;
    return (given >> kTileData & 1) != 0;
  }();
  return permitted;
}

}  // namespace amx
}  // namespace
#endif

#ifdef ASTERISM_AMX
namespace {

// The configuration of a thread, all registers whole. A thread without one dies at its first product; one that is left
// behind in a caller's thread slows its switches: so it lives as long as the object, within a parallel region.
class AmxConfiguration {
 public:
  AmxConfiguration() {
    struct alignas(64) {
      uint8_t palette = 1, first_row = 0, reserved[14] = {};
      uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
      uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
    } const whole;
    static_assert(sizeof(whole) == 64);
    amx::configure(&whole);
  }
  ~AmxConfiguration() { amx::release(); }
  AmxConfiguration(const AmxConfiguration&) = delete;
  AmxConfiguration& operator=(const AmxConfiguration&) = delete;
};

constexpr int kStrip = 32;  // rows, columns, and numbers along k, that one step of a product takes

// A block of 32 x 32 of C (+)= A B: four registers of C for two of A and two of B, so that no product waits for the one
// before it. Rows are so many bytes apart. Out of line, so that all of it stays in registers.
template <bool kAdd>
__attribute__((noinline)) void amx_block(int n_units, const float* a, int64_t a_row, const float* b, int64_t b_row,
                                         float* c, int64_t c_row) {
  alignas(64) static constexpr float kZeros[16] = {};
  const int64_t below = 4 * c_row;  // 16 rows, in floats
  if (kAdd) {
    amx::load<0>(c, c_row), amx::load<1>(c + 16, c_row);
    amx::load<2>(c + below, c_row), amx::load<3>(c + below + 16, c_row);
  } else {  // zeros are loaded too: a register that is cleared waits for its last product
    amx::load<0>(kZeros, 0), amx::load<1>(kZeros, 0), amx::load<2>(kZeros, 0), amx::load<3>(kZeros, 0);
  }
  const float* lower = a + 4 * a_row;
  for (int k = 0; k < n_units; k += 16, b += 4 * b_row) {
    amx::load<4>(a + k, a_row);
    amx::load<6>(b, b_row);
    amx::multiply_add<0, 4, 6>();
    amx::load<7>(b + 16, b_row);
    amx::multiply_add<1, 4, 7>();
    amx::load<5>(lower + k, a_row);
    amx::multiply_add<2, 5, 6>();
    amx::multiply_add<3, 5, 7>();
  }
  amx::store<0>(c, c_row), amx::store<1>(c + 16, c_row);
  amx::store<2>(c + below, c_row), amx::store<3>(c + below + 16, c_row);
}

// C (+)= A B. Rows, columns and numbers along k are multiples of 32; units along k are pairs.
template <bool kAdd>
void amx_product(int rows, int columns, int n_units, Matrix a, const float* b, int64_t b_row, float* c, int64_t c_row) {
  for (int n = 0; n < columns; n += kStrip)
    for (int m = 0; m < rows; m += kStrip)
      amx_block<kAdd>(n_units, a.data + m * a.row, 4 * a.row, b + n, 4 * b_row, c + m * c_row + n, 4 * c_row);
}

}  // namespace
#endif

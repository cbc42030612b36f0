// What a row of tiles needs for products by AMX: everything in strips of 32 queries and 32 keys.
//
// Scores stay transposed, [key][query]: rows of keys and values are read as A where they lie, and the packed queries
// are B. What sums over keys is computed transposed too, [feature][query], so that the weights are B as they come.

#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "amx.hpp"
#include "row.hpp"

#ifdef ASTERISM_AMX
namespace {

// bfloat16 with products by AMX. Units are padded to whole registers.
struct AmxBFloat16 {
  using Element = uint16_t;
  using Units = BFloat16Pairs;
  static constexpr bool kPairs = true, kInPlace = true;

  static int whole(int64_t n) { return static_cast<int>((n + kStrip - 1) / kStrip * kStrip); }
  static int units(int64_t n) { return whole(n) / 2; }
  static int row_width(int64_t dim) { return units(dim); }
  static float widen(uint16_t x) { return bfloat16_to_float(x); }
};

// 2^x to 1e-4, four times as exact as bfloat16, where `lanes` says so, else 0; exactly 1 for 0, and 0 for -infinity.
inline __m512 exp2_in_lanes(__mmask16 lanes, __m512 x) {
  const __m512 f = _mm512_reduce_ps(x, 0x09);  // x - floor(x); scalef multiplies by 2^floor(x)
  __m512 p = _mm512_fmadd_ps(_mm512_set1_ps(7.826807813e-2f), f, _mm512_set1_ps(2.263077711e-1f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(6.954241508e-1f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(1.0f));
  return _mm512_maskz_scalef_ps(lanes, p, x);
}

// 32 tokens of 8 features turned round, each feature's 32 numbers in a row: 8 x 8 in every quarter of the vectors,
// which hold tokens 8 apart, because what crosses quarters is slow. `from_row` and `to_row` count numbers of 16 bits.
inline void turn_block(const uint16_t* from, int64_t from_row, uint16_t* to, int64_t to_row) {
  const auto token = [&](int i) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i * from_row)); };
  __m512i rows[8], pairs[8];
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) {
    rows[i] = _mm512_inserti32x4(_mm512_castsi128_si512(token(i)), token(i + 8), 1);
    rows[i] = _mm512_inserti32x4(_mm512_inserti32x4(rows[i], token(i + 16), 2), token(i + 24), 3);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    pairs[i] = _mm512_unpacklo_epi16(rows[2 * i], rows[2 * i + 1]);
    pairs[4 + i] = _mm512_unpackhi_epi16(rows[2 * i], rows[2 * i + 1]);
  }
#pragma GCC unroll 2
  for (int half = 0; half < 2; ++half) {
    const __m512i* four = pairs + 4 * half;
    const __m512i low[] = {_mm512_unpacklo_epi32(four[0], four[1]), _mm512_unpacklo_epi32(four[2], four[3])};
    const __m512i high[] = {_mm512_unpackhi_epi32(four[0], four[1]), _mm512_unpackhi_epi32(four[2], four[3])};
    uint16_t* feature = to + 4 * half * to_row;
    _mm512_storeu_si512(feature, _mm512_unpacklo_epi64(low[0], low[1]));
    _mm512_storeu_si512(feature + to_row, _mm512_unpackhi_epi64(low[0], low[1]));
    _mm512_storeu_si512(feature + 2 * to_row, _mm512_unpacklo_epi64(high[0], high[1]));
    _mm512_storeu_si512(feature + 3 * to_row, _mm512_unpackhi_epi64(high[0], high[1]));
  }
}

class AmxRow : public Row<AmxBFloat16> {
 protected:
  static constexpr int kGroups = kStrip / kGroup;

  AmxRow(const Problem& p, const Pass& pass, Scratch& scratch)
      : Row(p, pass, scratch),
        whole_(AmxBFloat16::whole(p.dim)),
        value_whole_(AmxBFloat16::whole(p.value_dim)),
        key_units_(t_ / 2),
        scale_(std::abs(p.scale) * kLog2E) {
    scores_ = scratch.take<float>(t_ * kStrip);
  }

  // The queries change their sign with the scale, which is exact: so the largest raw score is the largest score.
  void begin(int64_t batch, int64_t head, int64_t row) {
    Row::begin(batch, head, row);
    n_strips_ = (count_ + kStrip - 1) / kStrip;
    if (!(p_.scale < 0)) return;
    uint16_t* queries = reinterpret_cast<uint16_t*>(queries_);
    for (int64_t i = 0; i < 2 * AmxBFloat16::units(p_.dim) * t_; ++i) queries[i] ^= 0x8000;
  }

  // The keys of a tile that some query of each strip may read, in whole strips of keys.
  void find_strips(const Allowed& may, int n_keys) {
    n_keys_ = n_keys;
    whole_keys_ = AmxBFloat16::whole(n_keys);
    for (int s = 0; s < n_strips_; ++s) {
      Range keys = {t_, 0};
      for (int g = kGroups * s; g < kGroups * (s + 1); ++g) {
        const int begin = may.live[2 * g] * kGroup, end = may.live[2 * g + 1] * kGroup;
        if (begin < std::min(end, n_keys)) keys = {std::min(keys.begin, begin), std::max(keys.end, end)};
      }
      strips_[s] = {keys.begin / kStrip * kStrip, std::min(whole_keys_, AmxBFloat16::whole(keys.end))};
    }
  }

  bool strip_reads(int strip, int key) const { return strips_[strip].begin <= key && key < strips_[strip].end; }

  bool is_read(int key) const {
    for (int s = 0; s < n_strips_; ++s)
      if (strip_reads(s, key)) return true;
    return false;
  }

  // Which of the 32 queries of a strip may read a key.
  uint32_t readers(const Allowed& may, int key, int strip) const {
    if (key >= n_keys_) return 0;
    const int first = strip * kStrip;
    return may.bits ? static_cast<uint32_t>(may.bits[key * p_.words + first / 64] >> (first % 64)) : ~uint32_t{0};
  }

  // Whether all queries of every strip may read all keys of its range, to which what pads the keys belongs.
  bool is_whole(const Allowed& may) const { return !may.bits && n_keys_ == whole_keys_; }

  // Rows of keys or values as A, in whole strips: where they lie if nothing has to be padded or cleared, else in `to`.
  Matrix whole_rows(const Tokens<Element>& tokens, const Allowed& may, float* to, int width) const {
    const Matrix rows = rows_of<AmxBFloat16>(tokens, !may.has_unread && n_keys_ == whole_keys_, to, width);
    if (rows.data != to) return rows;
    clear_unread(may, n_keys_, to, width);
    std::fill(to + static_cast<int64_t>(n_keys_) * width, to + static_cast<int64_t>(whole_keys_) * width, 0.0f);
    return rows;
  }

  // The raw scores of a strip, or another product of rows of keys with columns of queries, [key][32].
  void multiply_strip(int strip, const Matrix& rows, int n_units, const float* columns, float* to) const {
    const Range keys = strips_[strip];
    amx_product<false>(keys.end - keys.begin, kStrip, n_units, {rows.data + keys.begin * rows.row, rows.row, 1},
                       columns + strip * kStrip, t_, to + keys.begin * kStrip, kStrip);
  }

  // Whole rows of keys turned round, [feature][pairs of keys], as A of a sum over keys: the strips that are read.
  void turn(const Matrix& rows, int whole, float* to) const {
    const uint16_t* from = reinterpret_cast<const uint16_t*>(rows.data);
    for (int j = 0; j < whole_keys_; j += kStrip)
      for (int d = 0; d < whole && is_read(j); d += 8)
        turn_block(from + 2 * j * rows.row + d, 2 * rows.row, reinterpret_cast<uint16_t*>(to) + d * t_ + j, t_);
  }

  const AmxConfiguration configuration_;
  const int whole_, value_whole_;  // features in whole strips
  const int64_t key_units_;        // pairs of keys from one feature to the next where keys are turned round
  const float scale_;              // of scores, in powers of two; never negative
  int n_strips_ = 0, n_keys_ = 0, whole_keys_ = 0;
  Range strips_[kMostGroups / kGroups];
  float* scores_;
};

}  // namespace
#endif

// Calls the CPU kernel in a process of another machine (test_cpu_aarch64.py): blocks of memory come in on standard input
// with the places of the pointers in them, and go out as the call left them. With no input it writes the layout.

#include <cstdint>
#include <cstdio>
#include <vector>

extern "C" {
const char* asterism_layout();
const char* asterism_instruction_set();
int32_t asterism_forward(const void* problem);
int32_t asterism_backward(const void* problem);
}

struct Pointer {
  int64_t block, offset, target, target_offset;
};

int main() {
  int64_t head[3];  // backward, blocks, pointers
  if (std::fread(head, sizeof(head), 1, stdin) != 1) {
    std::printf("%s\n%s", asterism_instruction_set(), asterism_layout());
    return 0;
  }
  std::vector<int64_t> sizes(head[1]);
  std::vector<Pointer> pointers(head[2]);
  bool whole = std::fread(sizes.data(), 8, sizes.size(), stdin) == sizes.size();
  whole &= std::fread(pointers.data(), sizeof(Pointer), pointers.size(), stdin) == pointers.size();
  std::vector<std::vector<char>> blocks;
  for (const int64_t size : sizes) {
    blocks.emplace_back(size);
    whole &= std::fread(blocks.back().data(), 1, size, stdin) == static_cast<size_t>(size);
  }
  if (!whole) return 100;
  for (const Pointer& p : pointers)
    *reinterpret_cast<char**>(blocks[p.block].data() + p.offset) = blocks[p.target].data() + p.target_offset;
  const int32_t status = head[0] ? asterism_backward(blocks[0].data()) : asterism_forward(blocks[0].data());
  if (status) return status;
  for (const auto& block : blocks) std::fwrite(block.data(), 1, block.size(), stdout);
  return 0;
}

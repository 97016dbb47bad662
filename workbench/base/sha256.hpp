// SHA-256 (FIPS 180-4), for digests of inputs, outputs and policies.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace greenfast::workbench {

class Sha256 {
 public:
  void update(const void* data, std::size_t bytes);
  /// Ends the message; the object must not be used after it.
  std::array<std::uint8_t, 32> finish();
  /// finish() in lowercase hex.
  std::string hex();

 private:
  void blocks(const std::uint8_t* bytes, std::size_t count);  // of 64 bytes
  std::array<std::uint32_t, 8> state_{0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                      0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  std::array<std::uint8_t, 64> buffer_{};
  std::uint64_t length_ = 0;
};

std::string sha256_hex(const void* data, std::size_t bytes);
inline std::string sha256_hex(std::string_view text) {
  return sha256_hex(text.data(), text.size());
}

}  // namespace greenfast::workbench

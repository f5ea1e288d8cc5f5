#include "store/election/base64.h"

#include <openssl/evp.h>

#include <limits>

namespace mc {

std::string to_base64(std::string_view bytes) {
  MC_CHECK(bytes.size() < std::numeric_limits<int>::max() / 2);
  std::string out((bytes.size() + 2) / 3 * 4 + 1, '\0');  // plus a NUL
  const int n = EVP_EncodeBlock(reinterpret_cast<unsigned char*>(out.data()),
                                reinterpret_cast<const unsigned char*>(bytes.data()),
                                static_cast<int>(bytes.size()));
  out.resize(static_cast<size_t>(n));
  return out;
}

Result<std::string> from_base64(std::string_view text) {
  const auto bad = [&] { return fail(Code::kInvalid, "%zu bytes are not base64", text.size()); };
  if (text.size() % 4 != 0 || text.size() >= std::numeric_limits<int>::max() / 2) return bad();
  if (text.empty()) return std::string();
  const size_t data = text.find_last_not_of('=') + 1;  // openssl accepts '=' anywhere, as zero bits
  if (text.size() - data > 2 || text.substr(0, data).find_first_of("= \t\r\n") != text.npos)
    return bad();
  std::string out(text.size() / 4 * 3, '\0');
  const int n = EVP_DecodeBlock(reinterpret_cast<unsigned char*>(out.data()),
                                reinterpret_cast<const unsigned char*>(text.data()),
                                static_cast<int>(text.size()));
  if (n < 0) return bad();
  out.resize(static_cast<size_t>(n) - (text.size() - data));
  return out;
}

}  // namespace mc

// Against the examples of the standards: FIPS 180-4 (as NIST publishes them) and RFC 4231.
#include "core/base/hash.h"

#include <doctest/doctest.h>
#include <fmt/format.h>

namespace zeroplan {
namespace {

std::string Hex(const Sha256Digest& digest) {
  std::string hex;
  for (const uint8_t byte : digest) hex += fmt::format("{:02x}", byte);
  return hex;
}

TEST_CASE("SHA-256 of the standard's messages") {
  CHECK(Hex(Sha256("")) == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  CHECK(Hex(Sha256("abc")) == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  CHECK(Hex(Sha256("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq")) ==
        "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  CHECK(Hex(Sha256("abcdefghbcdefghicdefghijdefghijkefghijklfghijklmghijklmnhijklmnoijklmnopjklmnop"
                   "qklmnopqrlmnopqrsmnopqrstnopqrstu")) ==
        "cf5b16a778af8380036ce59e7b0492370b249b11e8f07a51afac45037afee9d1");
  CHECK(Hex(Sha256(std::string(1'000'000, 'a'))) ==
        "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST_CASE("SHA-256 of every length around a block's end") {
  // All zero bytes: the digest of the digests of 0 to 130 bytes, by another implementation.
  std::string all;
  for (size_t bytes = 0; bytes <= 130; ++bytes) all += AsText(Sha256(std::string(bytes, '\0')));
  CHECK(Hex(Sha256(all)) == "d6e99a52e4f306ac462a8669cfa9744fc9ac0cd54f1c1c92b91d2e3257397ead");
}

TEST_CASE("HMAC-SHA-256 of RFC 4231") {
  const auto bytes = [](size_t count, int value) {
    return std::string(count, static_cast<char>(value));
  };
  CHECK(Hex(HmacSha256(bytes(20, 0x0b), "Hi There")) ==
        "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
  CHECK(Hex(HmacSha256("Jefe", "what do ya want for nothing?")) ==
        "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
  CHECK(Hex(HmacSha256(bytes(20, 0xaa), bytes(50, 0xdd))) ==
        "773ea91e36800e46854db8ebd09181a72959098b3ef8c122d9635514ced565fe");
  CHECK(
      Hex(HmacSha256(bytes(131, 0xaa), "Test Using Larger Than Block-Size Key - Hash Key First")) ==
      "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
}

}  // namespace
}  // namespace zeroplan

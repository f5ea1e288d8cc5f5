#include "io/file.h"

#include <doctest/doctest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <string>

using namespace mc;

TEST_CASE("F120: a secret that others may read is refused by the mode of the open file") {
  const std::string path = "/tmp/mc-secret-" + std::to_string(::getpid());
  REQUIRE(io::write_file_atomically(path, "a secret\n", 0600));
  CHECK(io::read_secret_file(path, 100).value() == "a secret\n");
  CHECK(io::read_secret_file(path, 3).error().code == Code::kInvalid);
  for (const mode_t mode : {0644u, 0640u, 0604u, 0620u, 0601u}) {
    REQUIRE(::chmod(path.c_str(), mode) == 0);
    const auto read = io::read_secret_file(path, 3);  // too large as well: it was not read
    REQUIRE(!read);
    CHECK(read.error().code == Code::kDenied);
  }
  REQUIRE(::chmod(path.c_str(), 0400) == 0);
  CHECK(io::read_secret_file(path, 100).has_value());
  ::unlink(path.c_str());
  CHECK(!io::read_secret_file(path, 100));
}

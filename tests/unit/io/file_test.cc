#include "io/file.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <string>

using namespace mc;

TEST_CASE("an output that a user names replaces no device and no pipe, and follows links") {
  const std::string base = "/tmp/mc-atomic-" + std::to_string(::getpid());
  const std::string file = base + ".file", link = base + ".link", pipe = base + ".pipe";
  REQUIRE(io::write_file_atomically(file, "old\n", 0640));
  REQUIRE(::symlink(file.c_str(), link.c_str()) == 0);
  REQUIRE(io::write_output(link, "new\n"));
  struct stat info {};
  REQUIRE(::lstat(link.c_str(), &info) == 0);
  CHECK(S_ISLNK(info.st_mode));
  CHECK(io::read_file(file).value() == "new\n");
  ::unlink(file.c_str());
  REQUIRE(io::write_output(link, "again\n"));  // a link that leads nowhere yet
  CHECK(io::read_file(file).value() == "again\n");

  REQUIRE(::mkfifo(pipe.c_str(), 0600) == 0);
  CHECK(io::write_output(pipe, "lost\n").error().code == Code::kUnavailable);
  const int reader = ::open(pipe.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  REQUIRE(reader >= 0);
  REQUIRE(io::write_output(pipe, "through\n"));
  char got[16];
  CHECK(::read(reader, got, sizeof got) == 8);
  ::close(reader);
  REQUIRE(::lstat(pipe.c_str(), &info) == 0);
  CHECK(S_ISFIFO(info.st_mode));
  CHECK(io::write_output("/dev/null", "gone\n"));
  REQUIRE(::lstat("/dev/null", &info) == 0);
  CHECK(S_ISCHR(info.st_mode));

  // Stdout was sent to the file, and is named as an output too.
  const int own = ::dup(STDOUT_FILENO);
  std::fflush(stdout);
  const int sent = ::open(file.c_str(), O_WRONLY | O_TRUNC | O_CLOEXEC);
  REQUIRE(::dup2(sent, STDOUT_FILENO) == STDOUT_FILENO);
  std::printf("first\n");
  const Result<> written = io::write_output("/dev/stdout", "then\n");
  std::printf("last\n");
  std::fflush(stdout);
  ::dup2(own, STDOUT_FILENO);
  ::close(own);
  ::close(sent);
  CHECK(written);
  CHECK(io::read_file(file).value() == "first\nthen\nlast\n");
  for (const std::string& path : {file, link, pipe}) ::unlink(path.c_str());
}

TEST_CASE("an output in parts is the old file until it is finished, and keeps its mode") {
  const std::string path = "/tmp/mc-parts-" + std::to_string(::getpid());
  struct stat info {};
  {
    auto file = io::OutputFile::open(path);
    REQUIRE(file);
    REQUIRE(file->write("never\n"));
  }
  CHECK(::stat(path.c_str(), &info) != 0);
  REQUIRE(io::write_file_atomically(path, "old\n", 0600));
  {
    auto file = io::OutputFile::open(path);
    REQUIRE(file);
    REQUIRE(file->write("new"));
    CHECK(io::read_file(path).value() == "old\n");
    io::OutputFile moved = std::move(*file);
    REQUIRE(moved.write("er\n"));
    REQUIRE(moved.finish());
  }
  CHECK(io::read_file(path).value() == "newer\n");
  REQUIRE(::stat(path.c_str(), &info) == 0);
  CHECK((info.st_mode & 0777) == 0600);
  CHECK(!io::OutputFile::open("/tmp/mc-no-such-folder/x"));
  const auto folder = io::OutputFile::open("/tmp");  // before anything is written
  REQUIRE(!folder);
  CHECK(folder.error().code == Code::kInvalid);
  ::unlink(path.c_str());
}

TEST_CASE("F120: a secret that others may read is refused by the mode of the open file") {
  const std::string path = "/tmp/mc-secret-" + std::to_string(::getpid());
  REQUIRE(io::write_file_atomically(path, "a secret\n", 0600));
  CHECK(io::read_secret_file(path, 100).value() == "a secret\n");
  CHECK(io::read_secret_file(path, 3).error().code == Code::kInvalid);
  for (const mode_t mode : {0644u, 0640u, 0604u, 0620u, 0601u}) {
    REQUIRE(::chmod(path.c_str(), mode) == 0);
    CHECK(io::check_secret_file(path).error().code == Code::kDenied);
    const auto read = io::read_secret_file(path, 3);  // too large as well: it was not read
    REQUIRE(!read);
    CHECK(read.error().code == Code::kDenied);
  }
  REQUIRE(::chmod(path.c_str(), 0400) == 0);
  CHECK(io::read_secret_file(path, 100).has_value());
  ::unlink(path.c_str());
  CHECK(!io::read_secret_file(path, 100));
}

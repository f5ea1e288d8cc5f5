// What waits for a newer descriptor ends, whatever becomes of the thread that fetches it.
#include "xfer/engine/descriptor_refresher.h"

#include <doctest/doctest.h>
#include <sys/resource.h>

#include <future>

#include "tests/slow.h"

using namespace mc;
using namespace mc::xfer;
using namespace std::chrono_literals;

namespace descriptor_refresher_test {
namespace {

const SteadyClock kClock;
const std::atomic<bool> kNotCancelled{false};

SlicePtr new_slice() {
  auto slice = std::make_unique<Slice>();
  slice->cancelled = &kNotCancelled;
  return slice;
}

// With no file allowed, poll() refuses to wait for any.
class NoFiles {
 public:
  NoFiles() {
    REQUIRE(::getrlimit(RLIMIT_NOFILE, &before_) == 0);
    rlimit none = before_;
    none.rlim_cur = 0;
    REQUIRE(::setrlimit(RLIMIT_NOFILE, &none) == 0);
  }
  NoFiles(const NoFiles&) = delete;
  NoFiles& operator=(const NoFiles&) = delete;
  ~NoFiles() { ::setrlimit(RLIMIT_NOFILE, &before_); }

 private:
  rlimit before_{};
};

}  // namespace

TEST_SUITE("xfer/descriptor_refresher") {
  TEST_CASE("when its loop fails, what waits ends with that error, and so does what comes later") {
    std::promise<Error> first;
    std::optional<Error> second;
    int ended = 0;
    DescriptorRefresher::Hooks hooks;
    hooks.open = [](const SegmentDescriptor&, const std::string&) { return Result<>(); };
    hooks.over = [](SegmentHandle, std::vector<DescriptorRefresher::Waiting>, const Result<>&) {};
    hooks.give_up = [&](SlicePtr slice, Error why) {
      CHECK(slice != nullptr);
      if (++ended == 1)
        first.set_value(std::move(why));
      else
        second = std::move(why);
    };
    DescriptorRefresher refresher(kClock, NodeId{"test"}, hooks);
    std::future<Error> outcome = first.get_future();
    {
      const NoFiles none;
      refresher.wait(1, "", {new_slice(), {Code::kStale, "too old"}});
      REQUIRE(outcome.wait_for(5s * kSlow) == std::future_status::ready);
    }
    const Error why = outcome.get();
    CHECK(why.code != Code::kStale);
    CHECK(why.what.find("poll") != std::string::npos);
    refresher.wait(2, "", {new_slice(), {Code::kStale, "too old"}});
    REQUIRE(second.has_value());
    CHECK(second->what == why.what);
    refresher.stop();
    CHECK(ended == 2);
  }
}

}  // namespace descriptor_refresher_test

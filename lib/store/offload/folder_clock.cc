#include "store/offload/folder_clock.h"

#include "base/log.h"
#include "store/ssd/format.h"

namespace mc::store {
namespace {

constexpr const char* kClockFile = "CLOCK";
constexpr uint64_t kClockBytesMax = 4096;

std::optional<ClockMark> last_mark(ssd::Disk& disk) {
  const auto bytes = ssd::read_all(disk, kClockFile, kClockBytesMax);
  if (!bytes) {  // a new folder's, or of a version that left none
    if (bytes.error().code != Code::kNotFound)
      log_warn("ssd", "%s: %s: times to live there go by the wall clock", kClockFile,
               bytes.error().what.c_str());
    return {};
  }
  const auto mark = ssd::decode_mark(*bytes);
  if (mark) return ClockMark{mark->own_s, {mark->wall_s, mark->boot_s, mark->boot}};
  log_warn("ssd", "%s: %s: times to live there go by the wall clock", kClockFile,
           mark.error().what.c_str());
  return {};
}

}  // namespace

FolderClock::FolderClock(std::shared_ptr<ssd::Disk> disk, HostClock host, Time now)
    : disk_(std::move(disk)), host_(std::move(host)), seconds_(host_(), now, last_mark(*disk_)) {
  leave_mark(seconds_.mark(host_(), now));
}

std::optional<ClockMark> FolderClock::stepped(Time now) {
  const HostTimes host = host_();
  if (seconds_.stepped_s(host.wall_s, now) == 0) return {};
  return seconds_.mark(host, now);
}

void FolderClock::leave_mark(const ClockMark& mark) const {
  const ssd::FolderMark out{mark.own_s, mark.host.wall_s, mark.host.boot_s, mark.host.boot};
  if (auto left = ssd::write_all(*disk_, "", kClockFile, ssd::encode_mark(out)); !left)
    log_warn("ssd",
             "%s is not written: a step of the wall clock moves times to live there at the next "
             "start: %s",
             kClockFile, left.error().what.c_str());
}

}  // namespace mc::store

// Starts the processes of tensor-parallel ranks but the first, watches them and ends them.
//
// A rank is this program again, with the same command line. The environment variable kRankSeat
// has its number and its descriptors: a socket to the first rank, and the memory that all share. It
// loads its share of the weights and says so on the socket, or why it cannot.
//
// A rank that ends ends the worker: its process logs the rank's end and exits with status 1, as if
// it had been killed, and the conductor gives its requests to other workers. The others end when
// the thread ends that started them, however the first rank ended. Ranks ignore SIGTERM, SIGINT and
// SIGHUP: the first rank drains and then ends them.
//
// Thread: the owner's, which lives as long as the process; a thread of its own watches.
#pragma once
#include <sys/types.h>

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/result.h"
#include "io/fd.h"

namespace mc::serve {

inline constexpr const char* kRankSeat = "MC_TP_RANK";

class RankProcesses {
 public:
  // Starts ranks 1 to `ranks` - 1 as `command` (of main()), which inherit `memory`.
  static Result<std::unique_ptr<RankProcesses>> start(const std::vector<std::string>& command,
                                                      std::vector<std::string> environment,
                                                      uint32_t ranks, int memory);
  ~RankProcesses();
  RankProcesses(const RankProcesses&) = delete;
  RankProcesses& operator=(const RankProcesses&) = delete;

  // Until all have loaded their weights. From then on a rank that ends ends this process. Errors:
  // what a rank says, with its number.
  Result<> wait_ready();
  void send(int file);  // to each rank

 private:
  struct Rank {
    io::Fd socket;
    pid_t process = -1;
  };
  RankProcesses() = default;
  Result<> start_rank(const std::vector<std::string>& command,
                      const std::vector<std::string>& environment, uint32_t rank, int memory);
  Result<> read_ready(uint32_t rank, Rank& r);
  void watch();

  std::vector<Rank> ranks_;  // rank 1 first
  io::Fd stop_;              // an eventfd
  std::thread watcher_;
};

// What a rank's process has from the first rank.
struct RankSeat {
  uint32_t rank = 0;
  io::Fd socket, memory;
  void ready(const std::string& error) const;  // "": it has its weights
  io::Fd receive() const;                      // what RankProcesses::send() sent
};
// Of this process, from the variable's text. From now on it ends with the first rank, and ignores
// its signals. Errors: kInvalid for a text of another form, or that another process left.
Result<RankSeat> take_rank_seat(const std::string& text);

}  // namespace mc::serve

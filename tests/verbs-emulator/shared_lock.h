#pragma once
// A mutex in shared memory that outlives its holder: when a process dies with it, the next one
// takes it over. `Held` locks for a scope.
//
// Thread: any thread of any process that maps it.

#include <cerrno>

#include "layout.h"

namespace mc::emu {

inline void init_lock(SharedLock& lock) {
  pthread_mutexattr_t attributes;
  pthread_mutexattr_init(&attributes);
  pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
  pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
  pthread_mutex_init(&lock.mutex, &attributes);
  pthread_mutexattr_destroy(&attributes);
}

class Held {
 public:
  explicit Held(SharedLock& lock) : lock_(lock) {
    if (pthread_mutex_lock(&lock_.mutex) == EOWNERDEAD) pthread_mutex_consistent(&lock_.mutex);
  }
  ~Held() { pthread_mutex_unlock(&lock_.mutex); }
  Held(const Held&) = delete;
  Held& operator=(const Held&) = delete;

 private:
  SharedLock& lock_;
};

}  // namespace mc::emu

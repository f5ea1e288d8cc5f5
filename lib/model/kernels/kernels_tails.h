// Loads and stores the first lanes of a V: the ends of rows. Included as kernels_body.h is.
#pragma once

[[gnu::always_inline]] inline V load_some(const float* from, uint32_t n) {
  if (n == kLanes) return V::load(from);
  float lanes[kLanes] = {};
  for (uint32_t i = 0; i < n; ++i) lanes[i] = from[i];
  return V::load(lanes);
}
[[gnu::always_inline]] inline void store_some(V v, float* to, uint32_t n) {
  if (n == kLanes) return v.store(to);
  float lanes[kLanes];
  v.store(lanes);
  for (uint32_t i = 0; i < n; ++i) to[i] = lanes[i];
}

// Parses and prints numbers as kernels and topology files write them.
//
// Errors: kInvalid; `where` names the file. Thread: any. Pure.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace mc::topo {

inline constexpr int kNumbersMax = 65535;  // the highest CPU or node number taken

// The number, whole text or nothing; base 16 takes a leading 0x.
std::optional<uint64_t> parse_number(std::string_view s, int base = 10);

// "0-3,8" as the numbers, sorted.
Result<std::vector<int>> parse_cpu_list(const std::string& list, const std::string& where);

// A mask in groups of 32 bits, the highest first: "0x0000ffff,,0xffffffff"; an empty group is 0.
Result<std::vector<int>> parse_mask(const std::string& mask, const std::string& where);

std::string ranges(const std::vector<int>& numbers);  // {0,1,2,8} as "0-2,8"

// mlx5_2 before mlx5_10: stretches of digits compare as numbers.
bool in_natural_order(std::string_view a, std::string_view b);

}  // namespace mc::topo

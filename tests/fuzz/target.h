// A fuzz target: a parser of untrusted bytes and what is tried on it. tests/fuzz/targets.txt lists
// the names with their limits; tests/fuzz/NAME holds kept inputs.
#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace mc::fuzz {

struct Target {
  const char* name;
  void (*run)(std::string_view input);  // aborts when what must hold does not
  std::vector<std::string_view> (*words)() = [] { return std::vector<std::string_view>{}; };
  std::vector<std::string> (*seeds)() = [] { return std::vector<std::string>{}; };  // made inputs
};
const std::vector<Target>& targets();

void run_frames(std::string_view input);
void run_topology(std::string_view input);
std::vector<std::string_view> words_topology();
void run_front(std::string_view input);
std::vector<std::string_view> words_front();

void run_messages(std::string_view input);
std::vector<std::string> seeds_messages();
void run_values(std::string_view input);
void run_events(std::string_view input);
std::vector<std::string> seeds_events();
void run_etcd(std::string_view input);
std::vector<std::string_view> words_etcd();
void run_traces(std::string_view input);
std::vector<std::string_view> words_traces();
void run_disk(std::string_view input);
std::vector<std::string> seeds_disk();
void run_index(std::string_view input);
std::vector<std::string> seeds_index();

void run_tokenizer(std::string_view input);
std::vector<std::string_view> words_tokenizer();
void run_sentencepiece(std::string_view input);
std::vector<std::string> seeds_sentencepiece();
void run_gguf(std::string_view input);
std::vector<std::string> seeds_gguf();
void run_safetensors(std::string_view input);
std::vector<std::string> seeds_safetensors();
void run_template(std::string_view input);
std::vector<std::string_view> words_template();
std::vector<std::string> seeds_template();
void run_grammar(std::string_view input);
std::vector<std::string_view> words_grammar();
std::vector<std::string> seeds_grammar();

}  // namespace mc::fuzz

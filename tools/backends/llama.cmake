# How llama.cpp is compiled: read by CMake right after `project(llama_cpp)`. Variables set here win over its options.

# For any x86-64 of the last ten years and not for the processor at hand: what was compiled may be moved elsewhere.
set(GGML_NATIVE OFF)

# The model and nothing else: no pictures, no programs, no downloads.
set(LLAVA_BUILD OFF)
set(LLAMA_BUILD_EXAMPLES OFF)
set(LLAMA_BUILD_TESTS OFF)
set(LLAMA_BUILD_TOOLS OFF)
set(LLAMA_CURL OFF)
set(LLAMA_OPENSSL OFF)

# What those programs share takes half of the compiler's time. llama-cpp-python orders it by a cache entry, which this hides.
set(LLAMA_BUILD_COMMON OFF)

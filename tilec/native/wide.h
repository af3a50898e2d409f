// A function compiled for several kinds of processors, of which the right one is called.
#pragma once

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && defined(__gnu_linux__)
#define TILEC_WIDE __attribute__((optimize("O3"), target_clones("default", "avx2", "arch=skylake-avx512")))
#else
#define TILEC_WIDE
#endif

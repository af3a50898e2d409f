// The package of softmax.tile, called from C++ without Python:
//
//   tilec build softmax.tile --shape X=64,200 --target sm_90 -o softmax
//   g++ -O2 -I softmax main.cpp softmax/softmax.cpp -lcuda -o main && ./main softmax
#include <cmath>
#include <cstdio>
#include <vector>

#include "softmax.h"

// The driver's functions that this file uses itself; <cuda.h> declares them too.
extern "C" {
int cuInit(unsigned);
int cuDevicePrimaryCtxRetain(void **, int);
int cuCtxSetCurrent(void *);
int cuCtxSynchronize(void);
int cuMemAlloc_v2(unsigned long long *, size_t);
int cuMemcpyHtoD_v2(unsigned long long, const void *, size_t);
int cuMemcpyDtoH_v2(void *, unsigned long long, size_t);
}

const size_t N = 64, D = 200;  // as the package was built for

int main(int argc, char **argv) {
  void *context;
  if (argc != 2 || cuInit(0) || cuDevicePrimaryCtxRetain(&context, 0) || cuCtxSetCurrent(context)) {
    fprintf(stderr, "usage: main DIRECTORY, on a machine with a CUDA device\n");
    return 1;
  }
  softmax_package *package;
  if (softmax_load(argv[1], 0, &package)) {
    fprintf(stderr, "%s\n", softmax_error());
    return 1;
  }
  std::vector<float> x(N * D), y(N * D);
  for (size_t k = 0; k < x.size(); ++k) x[k] = std::sin(0.37f * k);
  unsigned long long dx, dy, workspace = 0;
  cuMemAlloc_v2(&dx, x.size() * sizeof(float));
  cuMemAlloc_v2(&dy, y.size() * sizeof(float));
  if (softmax_forward_workspace()) cuMemAlloc_v2(&workspace, softmax_forward_workspace());
  cuMemcpyHtoD_v2(dx, x.data(), x.size() * sizeof(float));
  if (softmax_forward(package, (const float *)dx, (float *)dy, (void *)workspace, nullptr)) {
    fprintf(stderr, "%s\n", softmax_error());
    return 1;
  }
  cuCtxSynchronize();
  cuMemcpyDtoH_v2(y.data(), dy, y.size() * sizeof(float));
  double worst = 0;
  for (size_t n = 0; n < N; ++n) {
    double total = 0, sum = 0;
    for (size_t d = 0; d < D; ++d) total += std::exp((double)x[n * D + d]);
    for (size_t d = 0; d < D; ++d) {
      worst = std::fmax(worst, std::fabs(y[n * D + d] - std::exp((double)x[n * D + d]) / total));
      sum += y[n * D + d];
    }
    if (n == 0) printf("the first row sums to %.6f\n", sum);
  }
  printf("largest error %.1e\n", worst);
  softmax_unload(package);
  return 0;
}

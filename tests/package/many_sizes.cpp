// Packages of two programs with open sizes, called with many: what they compute is compared with loops on the host.
#include <cmath>
#include <cstdio>
#include <string>
#include <vector>

#include "pool.h"
#include "scan.h"

extern "C" {
int cuInit(unsigned);
int cuDevicePrimaryCtxRetain(void **, int);
int cuCtxSetCurrent(void *);
int cuCtxSynchronize(void);
int cuMemAlloc_v2(unsigned long long *, size_t);
int cuMemFree_v2(unsigned long long);
int cuMemcpyHtoD_v2(unsigned long long, const void *, size_t);
int cuMemcpyDtoH_v2(void *, unsigned long long, size_t);
}

using Values = std::vector<float>;

struct Device {
  unsigned long long at = 0;
  size_t count;
  explicit Device(size_t n) : count(n) { cuMemAlloc_v2(&at, 4 * n + 16); }
  explicit Device(const Values &v) : Device(v.size()) { cuMemcpyHtoD_v2(at, v.data(), 4 * count); }
  Device(const Device &) = delete;
  ~Device() { cuMemFree_v2(at); }
  float *get() { return (float *)at; }
};

int compared = 0, wrong = 0, refused = 0;

Values some(size_t n) {
  static unsigned state = 1;
  Values v(n);
  for (float &x : v) x = (int)((state = state * 1664525u + 1013904223u) >> 8) / float(1 << 23) - 1;
  return v;
}

void compare(const char *what, long size, Device &found, const std::vector<double> &wanted) {
  Values v(found.count);
  cuCtxSynchronize();
  cuMemcpyDtoH_v2(v.data(), found.at, 4 * v.size());
  double worst = 0;
  for (size_t k = 0; k < wanted.size(); ++k) {
    double error = std::fabs(v[k] - wanted[k]) / (1 + std::fabs(wanted[k]));
    if (!(error <= worst)) worst = error;
  }
  ++compared;
  if (!(worst < 2e-5) && ++wrong) printf("%s of size %ld: off by %g\n", what, size, worst);
}

bool was_refused(int code, const char *(*told)(void)) {
  if (!code) return false;
  if (std::string(told()).find("built for sizes") == std::string::npos && ++wrong) printf("%s\n", told());
  return ++refused;
}

void pooled(pool_package *package, long n) {
  const int batch = 3, channels = 17;
  const long out = (n + 1) / 2;
  Values x = some(batch * n * channels);
  Device on(x), y(batch * out * channels), workspace(pool_forward_workspace(n) / 4 + 4);
  if (was_refused(pool_forward(package, n, on.get(), y.get(), workspace.get(), nullptr), pool_error)) return;
  std::vector<double> wanted(y.count, -INFINITY);
  for (size_t k = 0; k < wanted.size(); ++k) {
    const long c = k % channels, l = k / channels % out, b = k / channels / out;
    for (long p = 2 * l - 1; p <= 2 * l + 1; ++p)
      if (0 <= p && p < n) wanted[k] = std::fmax(wanted[k], x[(b * n + p) * channels + c]);
  }
  compare("pool", n, y, wanted);
}

void scanned(scan_package *package, long lanes) {
  const int steps = 65;
  const size_t count = steps * lanes;
  Values a = some(count), x = some(count), dh = some(count);
  Device on_a(a), on_x(x), on_dh(dh), h(count), da(count), dx(count);
  Device one(scan_forward_workspace(lanes) / 4 + 4), two(scan_gradient_workspace(lanes) / 4 + 4);
  if (was_refused(scan_forward(package, lanes, on_a.get(), on_x.get(), h.get(), one.get(), nullptr), scan_error) ||
      was_refused(scan_gradient(package, lanes, on_a.get(), on_x.get(), on_dh.get(), da.get(), dx.get(), two.get(),
                                nullptr), scan_error))
    return;
  std::vector<double> wanted(count), by_a(count), by_x(count);
  for (size_t k = 0; k < count; ++k) wanted[k] = x[k] + (k >= (size_t)lanes ? a[k] * wanted[k - lanes] : 0);
  for (size_t k = count; k-- > 0;) {
    by_x[k] = dh[k] + (k + lanes < count ? a[k + lanes] * by_x[k + lanes] : 0);
    by_a[k] = k >= (size_t)lanes ? by_x[k] * wanted[k - lanes] : 0;
  }
  compare("scan", lanes, h, wanted);
  compare("its gradient by A", lanes, da, by_a);
  compare("its gradient by X", lanes, dx, by_x);
}

int main(int, char **argv) {
  const std::string folder = argv[1];
  void *context;
  pool_package *pool, *none;
  scan_package *scan;
  if (cuInit(0) || cuDevicePrimaryCtxRetain(&context, 0) || cuCtxSetCurrent(context)) return 2;
  if (pool_load((folder + "/pool").c_str(), 0, &pool) || scan_load((folder + "/scan").c_str(), 0, &scan)) return 3;
  for (long n = 0; n <= 2048; n += n < 32 ? 1 : 48) {
    pooled(pool, n);
    scanned(scan, n);
  }
  if (!pool_load((folder + "/scan").c_str(), 0, &none) && ++wrong) printf("another package was loaded\n");
  if (!pool_forward(pool, -3, nullptr, nullptr, nullptr, nullptr) && ++wrong) printf("a negative size was taken\n");
  pool_unload(pool);
  scan_unload(scan);
  printf("%d compared, %d wrong, %d refused\n", compared, wrong, refused);
  return wrong || compared < 80;
}

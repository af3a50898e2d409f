/* Stands for the CUDA driver where there is none: memory is the host's, kernels do nothing, and every call that counts
   is a line of the file that STUB_LOG names. STUB_CAPABILITY is the device's, such as 90. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef unsigned long long ptr;

static void told(const char *format, ...) {
  const char *path = getenv("STUB_LOG");
  FILE *file = path ? fopen(path, "a") : NULL;
  if (!file) return;
  va_list rest;
  va_start(rest, format);
  vfprintf(file, format, rest);
  va_end(rest);
  fputc('\n', file);
  fclose(file);
}

int cuInit(unsigned flags) { return flags ? 1 : 0; }
int cuGetErrorString(int code, const char **text) { *text = "refused by the stub"; return code ? 0 : 0; }
int cuDeviceGet(int *device, int index) { *device = index; return 0; }
int cuDeviceGetName(char *name, int size, int device) { (void)device; snprintf(name, size, "Stub"); return 0; }
int cuDeviceGetAttribute(int *value, int which, int device) {
  const char *text = getenv("STUB_CAPABILITY");
  int capability = text ? atoi(text) : 90;
  (void)device;
  *value = which == 75 ? capability / 10 : which == 76 ? capability % 10 : 0;
  return 0;
}
int cuDevicePrimaryCtxRetain(void **context, int device) { (void)device; *context = (void *)1; return 0; }
int cuDevicePrimaryCtxRelease_v2(int device) { (void)device; told("release"); return 0; }
int cuCtxPushCurrent_v2(void *context) { return context ? 0 : 201; }
int cuCtxPopCurrent_v2(void **context) { *context = NULL; return 0; }
int cuCtxSetCurrent(void *context) { (void)context; return 0; }
int cuCtxSynchronize(void) { return 0; }
int cuModuleLoadData(void **module, const void *image) {
  *module = malloc(1);
  return memcmp(image, "\177ELF", 4) ? 200 : 0;
}
int cuModuleUnload(void *module) { free(module); return 0; }
int cuModuleGetFunction(void **function, void *module, const char *name) {
  (void)module;
  *function = strdup(name);
  return 0;
}
int cuFuncSetAttribute(void *f, int which, int value) { told("attribute %s %d %d", (char *)f, which, value); return 0; }
int cuFuncSetCacheConfig(void *f, int how) { (void)f; (void)how; return 0; }
int cuMemAlloc_v2(ptr *p, size_t n) { *p = (ptr)calloc(n, 1); return 0; }
int cuMemFree_v2(ptr p) { free((void *)p); return 0; }
int cuMemcpyHtoD_v2(ptr to, const void *from, size_t n) { memcpy((void *)to, from, n); return 0; }
int cuMemcpyDtoH_v2(void *to, ptr from, size_t n) { memcpy(to, (void *)from, n); return 0; }
int cuMemcpyDtoDAsync_v2(ptr to, ptr from, size_t n, void *stream) {
  (void)stream;
  memcpy((void *)to, (void *)from, n);
  return 0;
}
int cuMemsetD8Async(ptr to, unsigned char v, size_t n, void *s) { (void)s; memset((void *)to, v, n); return 0; }
int cuMemsetD16Async(ptr to, unsigned short v, size_t n, void *s) {
  (void)s;
  for (size_t k = 0; k < n; ++k) ((unsigned short *)to)[k] = v;
  return 0;
}
int cuMemsetD32Async(ptr to, unsigned v, size_t n, void *s) {
  (void)s;
  for (size_t k = 0; k < n; ++k) ((unsigned *)to)[k] = v;
  return 0;
}
int cuMemsetD2D32Async(ptr to, size_t pitch, unsigned v, size_t width, size_t height, void *s) {
  (void)s;
  for (size_t row = 0; row < height; ++row)
    for (size_t k = 0; k < width; ++k) ((unsigned *)(to + row * pitch))[k] = v;
  return 0;
}
int cuTensorMapEncodeTiled(void *map, int type, unsigned rank, void *address, const ptr *shape, const ptr *strides,
                           const unsigned *box, const unsigned *steps, int a, int swizzle, int b, int c) {
  (void)strides; (void)steps; (void)a; (void)b; (void)c;
  memset(map, 0, 128);
  memcpy(map, &address, sizeof address);
  told("map type %d rank %u shape %llu box %u swizzle %d", type, rank, shape[0], box[0], swizzle);
  return 0;
}
static int launched(const char *how, void *f, unsigned x, unsigned y, unsigned z, unsigned threads, unsigned shared,
                    void **parameters) {
  told("%s %s %u %u %u %u %u %d", how, (char *)f, x, y, z, threads, shared, *(int *)parameters[0]);
  return 0;
}
int cuLaunchKernel(void *f, unsigned x, unsigned y, unsigned z, unsigned bx, unsigned by, unsigned bz, unsigned shared,
                   void *stream, void **parameters, void **extra) {
  (void)by; (void)bz; (void)stream; (void)extra;
  return launched("launch", f, x, y, z, bx, shared, parameters);
}
int cuLaunchCooperativeKernel(void *f, unsigned x, unsigned y, unsigned z, unsigned bx, unsigned by, unsigned bz,
                              unsigned shared, void *stream, void **parameters) {
  (void)by; (void)bz; (void)stream;
  return launched("cooperative", f, x, y, z, bx, shared, parameters);
}

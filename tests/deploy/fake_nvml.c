/* A stand-in for libnvidia-ml.so.1: one card whose processes are read from a file at every call.
 *
 * So that NVIDIA's own binding, our reader and the attribution run unchanged in real containers on a machine without
 * a GPU. FAKE_NVML names the file; its lines:
 *     namespace INODE     the PID namespace in which the PIDs below are meant
 *     total BYTES
 *     reserved BYTES
 *     driver BYTES        used by no process (page tables, driver structures)
 *     process PID BYTES
 *
 * As the driver does since 535.113.01: a caller sees the processes of its own PID namespace, so a container without
 * `pid: host` gets an empty list while memory is in use.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SUCCESS = 0, NOT_SUPPORTED = 3, INSUFFICIENT_SIZE = 7, UNKNOWN = 999, MOST = 256 };

typedef struct { unsigned int pid; unsigned long long used; unsigned int gi, ci; } process_t;
typedef struct { unsigned int version; unsigned long long total, reserved, free, used; } memory_v2_t;
typedef struct { unsigned long long total, free, used; } memory_t;

static unsigned long long total, reserved, driver, in_use;
static process_t processes[MOST];
static unsigned int count;

static int load(void) {
  char word[32], own[64] = "", wanted[64] = "";
  unsigned long long a, b;
  const char *path = getenv("FAKE_NVML");
  FILE *file = path ? fopen(path, "r") : NULL;
  char line[256];
  ssize_t length = readlink("/proc/self/ns/pid", own, sizeof own - 1);
  if (!file || length < 0) { if (file) fclose(file); return UNKNOWN; }
  own[length] = 0;
  total = reserved = driver = in_use = 0;
  count = 0;
  while (fgets(line, sizeof line, file)) {
    int fields = sscanf(line, "%31s %llu %llu", word, &a, &b);
    if (fields < 2) continue;
    if (!strcmp(word, "namespace")) snprintf(wanted, sizeof wanted, "pid:[%llu]", a);
    else if (!strcmp(word, "total")) total = a;
    else if (!strcmp(word, "reserved")) reserved = a;
    else if (!strcmp(word, "driver")) driver = a;
    else if (!strcmp(word, "process") && fields == 3 && count < MOST) {
      processes[count].pid = (unsigned int)a;
      processes[count].used = b;
      processes[count].gi = processes[count].ci = 0xFFFFFFFFu;
      in_use += b;
      count++;
    }
  }
  fclose(file);
  if (strcmp(own, wanted)) count = 0;
  return SUCCESS;
}

static int text(char *out, unsigned int size, const char *what) {
  snprintf(out, size, "%s", what);
  return SUCCESS;
}

int nvmlInitWithFlags(unsigned int flags) { (void)flags; return load(); }
int nvmlInit_v2(void) { return load(); }
int nvmlShutdown(void) { return SUCCESS; }
const char *nvmlErrorString(int code) { return code == NOT_SUPPORTED ? "Not Supported" : "Unknown Error"; }
int nvmlSystemGetDriverVersion(char *out, unsigned int size) { return text(out, size, "580.00.fake"); }
int nvmlSystemGetNVMLVersion(char *out, unsigned int size) { return text(out, size, "13.580.00.fake"); }
int nvmlSystemGetCudaDriverVersion_v2(int *version) { *version = 13000; return SUCCESS; }
int nvmlDeviceGetCount_v2(unsigned int *out) { *out = 1; return SUCCESS; }
int nvmlDeviceGetHandleByIndex_v2(unsigned int index, void **handle) {
  *handle = &processes;
  return index ? 2 : SUCCESS;
}
int nvmlDeviceGetUUID(void *device, char *out, unsigned int size) {
  (void)device;
  return text(out, size, "GPU-fa4e0000-0000-0000-0000-000000000001");
}
int nvmlDeviceGetName(void *device, char *out, unsigned int size) {
  (void)device;
  return text(out, size, "NVIDIA GeForce RTX 4070 Laptop GPU (fake)");
}
int nvmlDeviceGetMemoryInfo_v2(void *device, memory_v2_t *out) {
  int code = load();
  (void)device;
  if (code) return code;
  out->total = total;
  out->reserved = reserved;
  out->used = in_use + driver;
  out->free = total - reserved - out->used;
  return SUCCESS;
}
int nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned int *size, process_t *out) {
  int code = load();
  (void)device;
  if (code) return code;
  if (*size < count) { *size = count; return INSUFFICIENT_SIZE; }
  *size = count;
  if (count) memcpy(out, processes, count * sizeof *processes);
  return SUCCESS;
}

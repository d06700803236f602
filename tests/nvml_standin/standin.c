/* A small stand-in for libnvidia-ml.so.1: enough of NVML for the real pynvml to run the real sweep without a GPU.
 *
 * NVML_STANDIN in the environment says how it behaves:
 *   healthy        four GPUs that answer
 *   lost:N         GPU N answers GPU_IS_LOST from the memory call on
 *   unsupported    every call of a device but name and PCI info is NOT_SUPPORTED
 *   hang:N         the temperature call on GPU N never returns
 *   hang-init      nvmlInit never returns
 *   crash:N        the temperature call on GPU N dies of SIGSEGV
 *   noise          like healthy, but the library prints to stdout
 *   init:CODE      nvmlInit returns CODE
 *
 * Compiled with -DWITHOUT_MARGIN it lacks the symbol nvmlDeviceGetMarginTemperature, as an older driver does.
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef int ret;
typedef long device; /* the index plus one, so that no handle is NULL */
enum { SUCCESS = 0, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, IS_LOST = 15 };
enum { GPUS = 4 };

static const char *mode(void) {
    const char *value = getenv("NVML_STANDIN");
    return value ? value : "healthy";
}

static int is(const char *name) { return strcmp(mode(), name) == 0; }

static int number(const char *name) { /* the N of "name:N", or -1 */
    size_t length = strlen(name);
    return strncmp(mode(), name, length) == 0 && mode()[length] == ':' ? atoi(mode() + length + 1) : -1;
}

static void hang(void) {
    for (;;) pause();
}

static ret lost_or(device d, ret otherwise) { return number("lost") == d - 1 ? IS_LOST : otherwise; }

#define GUARD(d)                              \
    do {                                      \
        ret r = lost_or(d, SUCCESS);          \
        if (r != SUCCESS) return r;           \
        if (is("unsupported")) return NOT_SUPPORTED; \
    } while (0)

ret nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    if (is("hang-init")) hang();
    if (is("noise")) printf("library says hello on stdout\n"), fflush(stdout);
    int code = number("init");
    return code >= 0 ? code : SUCCESS;
}
ret nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
ret nvmlShutdown(void) { return SUCCESS; }

static ret text(char *out, unsigned size, const char *value) {
    snprintf(out, size, "%s", value);
    return SUCCESS;
}

ret nvmlSystemGetDriverVersion(char *out, unsigned size) { return text(out, size, "570.86.15"); }
ret nvmlSystemGetNVMLVersion(char *out, unsigned size) { return text(out, size, "12.570.86.15"); }
ret nvmlSystemGetCudaDriverVersion_v2(int *out) { return *out = 12080, SUCCESS; }
ret nvmlDeviceGetCount_v2(unsigned *count) { return *count = GPUS, SUCCESS; }
ret nvmlDeviceGetHandleByIndex_v2(unsigned index, device *out) { return index < GPUS ? (*out = index + 1, SUCCESS) : INVALID_ARGUMENT; }
ret nvmlDeviceGetName(device d, char *out, unsigned size) { return (void)d, text(out, size, "NVIDIA H100 80GB HBM3"); }
ret nvmlDeviceGetUUID(device d, char *out, unsigned size) {
    GUARD(d);
    snprintf(out, size, "GPU-00000000-0000-4000-8000-00000000000%ld", d);
    return SUCCESS;
}

struct pci { char legacy[16]; unsigned domain, bus, dev, id, subsystem; char bus_id[32]; };
ret nvmlDeviceGetPciInfo_v3(device d, struct pci *out) {
    memset(out, 0, sizeof *out);
    snprintf(out->legacy, sizeof out->legacy, "0000:%02lX:00.0", 0x10 * d);
    snprintf(out->bus_id, sizeof out->bus_id, "00000000:%02lX:00.0", 0x10 * d);
    out->bus = 0x10 * d;
    out->id = 0x233010DE;
    return SUCCESS;
}

struct memory { unsigned long long total, free, used; };
struct memory_v2 { unsigned version; unsigned long long total, reserved, free, used; };
ret nvmlDeviceGetMemoryInfo(device d, struct memory *out) {
    GUARD(d);
    out->total = 81559ULL << 20, out->used = 1 << 20, out->free = out->total - out->used;
    return SUCCESS;
}
ret nvmlDeviceGetMemoryInfo_v2(device d, struct memory_v2 *out) {
    GUARD(d);
    if (out->version != 0x02000028) return 25; /* ARGUMENT_VERSION_MISMATCH */
    out->total = 81559ULL << 20, out->reserved = 600 << 20, out->used = 1 << 20, out->free = out->total - (601 << 20);
    return SUCCESS;
}

ret nvmlDeviceGetPersistenceMode(device d, unsigned *out) { GUARD(d); return *out = 1, SUCCESS; }
ret nvmlDeviceGetComputeMode(device d, unsigned *out) { GUARD(d); return *out = 0, SUCCESS; }
ret nvmlDeviceGetMigMode(device d, unsigned *now, unsigned *pending) { GUARD(d); return *now = *pending = 0, SUCCESS; }
ret nvmlDeviceGetCurrentClocksEventReasons(device d, unsigned long long *out) { GUARD(d); return *out = 1, SUCCESS; }
ret nvmlDeviceGetEccMode(device d, unsigned *now, unsigned *pending) { GUARD(d); return *now = *pending = 1, SUCCESS; }
ret nvmlDeviceGetTotalEccErrors(device d, int kind, int counter, unsigned long long *out) {
    (void)kind, (void)counter;
    GUARD(d);
    return *out = 0, SUCCESS;
}
ret nvmlDeviceGetRemappedRows(device d, unsigned *corrected, unsigned *uncorrected, unsigned *pending, unsigned *failure) {
    GUARD(d);
    return *corrected = *uncorrected = *pending = *failure = 0, SUCCESS;
}
ret nvmlDeviceGetTemperature(device d, int sensor, unsigned *out) {
    (void)sensor;
    GUARD(d);
    if (number("hang") == d - 1) hang();
    if (number("crash") == d - 1) raise(SIGSEGV);
    return *out = 31, SUCCESS;
}
#ifndef WITHOUT_MARGIN
struct margin { unsigned version; int margin; };
ret nvmlDeviceGetMarginTemperature(device d, struct margin *out) { GUARD(d); return out->margin = 56, SUCCESS; }
#endif
ret nvmlDeviceGetEnforcedPowerLimit(device d, unsigned *out) { GUARD(d); return *out = 700000, SUCCESS; }
ret nvmlDeviceGetPowerManagementDefaultLimit(device d, unsigned *out) { GUARD(d); return *out = 700000, SUCCESS; }
ret nvmlDeviceGetNvLinkState(device d, unsigned link, int *out) { GUARD(d); return (void)link, *out = 1, SUCCESS; }

struct fabric { unsigned version; unsigned char cluster[16]; int status; unsigned clique; unsigned char state; unsigned health; };
ret nvmlDeviceGetGpuFabricInfoV(device d, struct fabric *out) {
    GUARD(d);
    out->status = SUCCESS, out->state = 3, out->health = 0;
    return SUCCESS;
}

union value { double d; unsigned ui; unsigned long ul; unsigned long long ull; long long sll; int si; unsigned short us; };
struct field { unsigned id, scope; long long stamp, latency; int type, result; union value value; };
ret nvmlDeviceGetFieldValues(device d, int count, struct field *fields) {
    GUARD(d);
    for (int i = 0; i < count; i++) {
        fields[i].result = NOT_SUPPORTED;
        if (fields[i].id == 230) fields[i].result = SUCCESS, fields[i].type = 1, fields[i].value.ui = 0;
        if (fields[i].id == 194) fields[i].result = SUCCESS, fields[i].type = 5, fields[i].value.si = -2;
        if (fields[i].id == 164) fields[i].result = SUCCESS, fields[i].type = 1, fields[i].value.ui = 26562;
    }
    return SUCCESS;
}
ret nvmlDeviceGetP2PStatus(device one, device other, int index, int *out) {
    (void)other, (void)index;
    GUARD(one);
    return *out = 0, SUCCESS;
}

struct process { unsigned pid; unsigned long long used; unsigned gpu_instance, compute_instance; };
ret nvmlDeviceGetComputeRunningProcesses_v3(device d, unsigned *count, struct process *out) {
    GUARD(d);
    if (d != 1) return *count = 0, SUCCESS;
    if (*count < 1 || !out) return *count = 1, 7; /* INSUFFICIENT_SIZE */
    out[0] = (struct process){.pid = 1, .used = 5ULL << 30};
    return *count = 1, SUCCESS;
}

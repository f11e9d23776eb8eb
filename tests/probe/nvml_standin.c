/* A stand-in for NVIDIA's libnvidia-ml.so.1, compiled by the tests: signatures, structures and error codes as in nvml.h.
 * What it answers it reads, at every call, from the file named by KVSCOPE_NVML_STATE. Its lines:
 *   fail FUNCTION CODE             that function returns this error
 *   device TOTAL USED MIG NAME     a GPU; MIG is 1 where it is divided
 *   instance DEVICE TOTAL USED     a MIG instance of that GPU
 *   process DEVICE KIND PID BYTES  KIND: Compute, Graphics or MPSCompute; BYTES -1: not available; DEVICE of an
 *                                  instance: 100 + its number
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SUCCESS = 0, INVALID_ARGUMENT = 2, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7 };
typedef int nvmlReturn_t;
typedef void *nvmlDevice_t;
typedef struct { unsigned long long total, free, used; } nvmlMemory_t;
typedef struct {
    unsigned int pid;
    unsigned long long usedGpuMemory;
    unsigned int gpuInstanceId, computeInstanceId;
} nvmlProcessInfo_t;

static char lines[64][256];

static int load(const char *word)
{
    char line[256];
    int count = 0;
    FILE *file = fopen(getenv("KVSCOPE_NVML_STATE"), "r");
    while (file && fgets(line, sizeof line, file) && count < 64)
        if (!strncmp(line, word, strlen(word)) && line[strlen(word)] == ' ')
            strcpy(lines[count++], line + strlen(word) + 1);
    if (file)
        fclose(file);
    return count;
}

static nvmlReturn_t failure(const char *function)
{
    char name[128];
    int code, count = load("fail");
    for (int i = 0; i < count; i++)
        if (sscanf(lines[i], "%127s %d", name, &code) == 2 && !strcmp(name, function))
            return code;
    return SUCCESS;
}

static long number(nvmlDevice_t device) { return (long)device - 1; }

nvmlReturn_t nvmlInitWithFlags(unsigned int flags) { (void)flags; return failure("nvmlInitWithFlags"); }
nvmlReturn_t nvmlShutdown(void) { return SUCCESS; }
const char *nvmlErrorString(nvmlReturn_t code) { static char text[64]; sprintf(text, "stand-in error %d", code); return text; }

nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int *count) { *count = load("device"); return failure("nvmlDeviceGetCount_v2"); }

nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *device)
{
    if ((int)index >= load("device"))
        return INVALID_ARGUMENT;
    *device = (nvmlDevice_t)(long)(index + 1);
    return SUCCESS;
}

nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char *name, unsigned int length)
{
    unsigned long long total, used;
    int mig;
    char text[128];
    load("device");
    sscanf(lines[number(device)], "%llu %llu %d %127[^\n]", &total, &used, &mig, text);
    snprintf(name, length, "%s", text);
    return SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory)
{
    int which;
    if (number(device) >= 100) {
        load("instance");
        sscanf(lines[number(device) - 100], "%d %llu %llu", &which, &memory->total, &memory->used);
    } else {
        load("device");
        sscanf(lines[number(device)], "%llu %llu", &memory->total, &memory->used);
    }
    memory->free = memory->total - memory->used;
    return failure("nvmlDeviceGetMemoryInfo");
}

nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned int *current, unsigned int *pending)
{
    unsigned long long total, used;
    load("device");
    sscanf(lines[number(device)], "%llu %llu %u", &total, &used, current);
    *pending = *current;
    return failure("nvmlDeviceGetMigMode");
}

nvmlReturn_t nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t device, unsigned int *count) { (void)device; *count = 7; return SUCCESS; }

nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t device, unsigned int index, nvmlDevice_t *instance)
{
    int which, seen = 0, count = load("instance");
    for (int i = 0; i < count; i++)
        if (sscanf(lines[i], "%d", &which) == 1 && which == number(device) && seen++ == (int)index) {
            *instance = (nvmlDevice_t)(long)(101 + i);
            return SUCCESS;
        }
    return NOT_FOUND;
}

static nvmlReturn_t running(const char *kind, const char *function, nvmlDevice_t device, unsigned int *count,
                            nvmlProcessInfo_t *found)
{
    char this_kind[32];
    int which;
    unsigned int pid, room = *count, have = 0;
    long long bytes;
    nvmlReturn_t failed = failure(function);
    int total = load("process");
    if (failed)
        return failed;
    for (int i = 0; i < total; i++)
        if (sscanf(lines[i], "%d %31s %u %lld", &which, this_kind, &pid, &bytes) == 4 && which == number(device)
            && !strcmp(kind, this_kind)) {
            if (have < room && found)
                found[have] = (nvmlProcessInfo_t){pid, (unsigned long long)bytes, 0xFFFFFFFF, 0xFFFFFFFF};
            have++;
        }
    *count = have;
    return have > room || (have && !found) ? INSUFFICIENT_SIZE : SUCCESS;
}

#define LIST(KIND, VERSION) \
    nvmlReturn_t nvmlDeviceGet##KIND##RunningProcesses_##VERSION(nvmlDevice_t d, unsigned int *n, nvmlProcessInfo_t *p) \
    { return running(#KIND, "nvmlDeviceGet" #KIND "RunningProcesses", d, n, p); }
#ifdef OLD_DRIVER
LIST(Compute, v2)
LIST(Graphics, v2)
#else
LIST(Compute, v3)
LIST(Graphics, v3)
LIST(MPSCompute, v3)
#endif

nvmlReturn_t nvmlSystemGetProcessName(unsigned int pid, char *name, unsigned int length)
{
    if (pid == 4000001)
        return NOT_FOUND;
    snprintf(name, length, "/usr/bin/program-%u", pid);
    return failure("nvmlSystemGetProcessName");
}

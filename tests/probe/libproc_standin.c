/* A stand-in for macOS's libproc, compiled by the tests: struct rusage_info_v4 as in Apple's sys/resource.h.
 * Process 7 has the children 8 and 9; 9 ended meanwhile; 66 is another user's. */
#include <errno.h>
#include <stdint.h>
#include <string.h>

struct rusage_info_v4 {
    uint8_t ri_uuid[16];
    uint64_t ri_user_time, ri_system_time, ri_pkg_idle_wkups, ri_interrupt_wkups, ri_pageins, ri_wired_size,
        ri_resident_size, ri_phys_footprint, ri_proc_start_abstime, ri_proc_exit_abstime, ri_child_user_time,
        ri_child_system_time, ri_child_pkg_idle_wkups, ri_child_interrupt_wkups, ri_child_pageins,
        ri_child_elapsed_abstime, ri_diskio_bytesread, ri_diskio_byteswritten, ri_cpu_time_qos_default,
        ri_cpu_time_qos_maintenance, ri_cpu_time_qos_background, ri_cpu_time_qos_utility, ri_cpu_time_qos_legacy,
        ri_cpu_time_qos_user_initiated, ri_cpu_time_qos_user_interactive, ri_billed_system_time,
        ri_serviced_system_time, ri_logical_writes, ri_lifetime_max_phys_footprint, ri_instructions, ri_cycles,
        ri_billed_energy, ri_serviced_energy, ri_interval_max_phys_footprint, ri_runnable_time;
};

int proc_pid_rusage(int pid, int flavor, void *buffer)
{
    struct rusage_info_v4 *info = buffer;
    if (flavor != 4) { errno = EINVAL; return -1; }
    if (pid == 66) { errno = EPERM; return -1; }
    if (pid != 7 && pid != 8) { errno = ESRCH; return -1; }
    memset(info, 0xAB, sizeof *info);
    info->ri_phys_footprint = 1000000ull * pid;
    info->ri_resident_size = 3000000ull * pid;
    info->ri_lifetime_max_phys_footprint = 5000000ull * pid;
    return 0;
}

int proc_listchildpids(int pid, int *children, int size)
{
    if (pid != 7 || size < 8) return 0;
    children[0] = 8;
    children[1] = 9;
    return 2;
}

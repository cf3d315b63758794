/* Permission to use AMX, and the shapes of the tiles. */
#define _GNU_SOURCE
#include "amx.h"

#if defined(HAS_AMX)
#include <sys/syscall.h>
#include <unistd.h>

#define REQUEST_PERMISSION 0x1023 /* ARCH_REQ_XCOMP_PERM of arch_prctl */
#define TILE_DATA 18              /* the state component of the tiles, which Linux saves only for permitted processes */

int32_t slipstream_uses_amx; /* set before any function of the library is called, never changed afterwards */
static __thread int64_t configured; /* the rows of this thread's tiles; 0: they are not set up */

/* The operand of LDTILECFG. */
struct tile_config {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
};

__attribute__((constructor)) static void request_permission(void) {
    slipstream_uses_amx = syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) == 0;
}

void amx_configure(int64_t rows) {
    if (rows == configured) return;
    uint8_t first = rows < 16 ? rows : 16, second = rows > 16 ? rows - 16 : 1;
    struct tile_config config = {.palette = 1, .rows = {first, first, second, second, first, second, 16, 16}};
    for (int i = 0; i < 8; i++) config.row_bytes[i] = 64;
    FINISH_WRITES();
    _tile_loadconfig(&config);
    configured = rows;
}

void amx_release(void) {
    if (configured) _tile_release();
    configured = 0;
}
#else
int32_t slipstream_uses_amx; /* 0 */
void amx_configure(int64_t rows) { (void)rows; }
void amx_release(void) {}
#endif

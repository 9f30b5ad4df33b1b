// What kernels of runtime/backends/cuda ask of CUDA, for g++: their source runs on the processor, a block at a time, every thread
// of a block a coroutine. tests/cuda_shim.py says what is checked. No data race that needs two threads at once is seen;
// one that the order of threads shows, is: every launch runs forwards, backwards and in an order that nobody knows.
#pragma once
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include <cmath>
#include <type_traits>
#include <utility>

#define __global__ static
#define __device__
#define __host__
#define __forceinline__ inline
#define __noinline__ __attribute__((noinline))
#define __restrict__ __restrict
#define __launch_bounds__(...)
#define __constant__ static const
#define __align__(n) alignas(n)
#define __CUDA_ARCH__ 800
#define CUDART_INF_F INFINITY
#define CUDART_INF ((double)INFINITY)
#define CUDART_NAN_F NAN
#define CUDART_NAN ((double)NAN)

typedef unsigned int uint;
typedef unsigned char uchar;
typedef unsigned short ushort;

// Vectors

#define MZ_VECTORS(T, P)                                                                                     \
    struct P##1 { T x; };                                                                                    \
    struct alignas(2 * sizeof(T)) P##2 { T x, y; };                                                          \
    struct P##3 { T x, y, z; };                                                                              \
    struct alignas(4 * sizeof(T) > 16 ? 16 : 4 * sizeof(T)) P##4 { T x, y, z, w; };                          \
    static inline P##2 make_##P##2(T x, T y) { return {x, y}; }                                              \
    static inline P##3 make_##P##3(T x, T y, T z) { return {x, y, z}; }                                      \
    static inline P##4 make_##P##4(T x, T y, T z, T w) { return {x, y, z, w}; }
MZ_VECTORS(char, char)
MZ_VECTORS(unsigned char, uchar)
MZ_VECTORS(short, short)
MZ_VECTORS(unsigned short, ushort)
MZ_VECTORS(int, int)
MZ_VECTORS(unsigned int, uint)
MZ_VECTORS(long long, longlong)
MZ_VECTORS(unsigned long long, ulonglong)
MZ_VECTORS(float, float)
MZ_VECTORS(double, double)

struct dim3 {
    unsigned x = 1, y = 1, z = 1;
};

// Floats of 16 bits: numbers are converted, never computed with

template <class To, class From> static inline To mz_bits(From v) {
    static_assert(sizeof(To) == sizeof(From), "bits of one width");
    To r;
    memcpy(&r, &v, sizeof r);
    return r;
}

struct alignas(2) __half {
    unsigned short bits;
    __half() = default;
    template <class T, class = std::enable_if_t<std::is_arithmetic_v<T>>>
    __half(T v) : bits(mz_bits<unsigned short>((_Float16)v)) {}
    operator float() const { return (float)mz_bits<_Float16>(bits); }
};
struct alignas(2) __nv_bfloat16 {
    unsigned short bits;
    __nv_bfloat16() = default;
    template <class T, class = std::enable_if_t<std::is_arithmetic_v<T>>> __nv_bfloat16(T v) {
        unsigned u = mz_bits<unsigned>((float)v);
        bits = (u & 0x7fffffffu) > 0x7f800000u ? 0x7fff : (unsigned short)((u + 0x7fffu + ((u >> 16) & 1)) >> 16);
    }
    operator float() const { return mz_bits<float>((unsigned)bits << 16); }
};
typedef __half half;
typedef __nv_bfloat16 nv_bfloat16;
struct alignas(4) __half2 { __half x, y; };
struct alignas(4) __nv_bfloat162 { __nv_bfloat16 x, y; };
typedef __half2 half2;
static inline float __half2float(__half v) { return v; }
static inline __half __float2half(float v) { return __half(v); }
static inline __half __float2half_rn(float v) { return __half(v); }
static inline __half __double2half(double v) { return __half(v); }
static inline unsigned short __half_as_ushort(__half v) { return v.bits; }
static inline __half __ushort_as_half(unsigned short v) { return mz_bits<__half>(v); }
static inline float2 __half22float2(__half2 v) { return {(float)v.x, (float)v.y}; }
static inline __half2 __floats2half2_rn(float x, float y) { return {__half(x), __half(y)}; }
static inline __half2 __float22half2_rn(float2 v) { return {__half(v.x), __half(v.y)}; }
static inline float __bfloat162float(__nv_bfloat16 v) { return v; }
static inline __nv_bfloat16 __float2bfloat16(float v) { return __nv_bfloat16(v); }
static inline __nv_bfloat16 __float2bfloat16_rn(float v) { return __nv_bfloat16(v); }
static inline unsigned short __bfloat16_as_ushort(__nv_bfloat16 v) { return v.bits; }
static inline __nv_bfloat16 __ushort_as_bfloat16(unsigned short v) { return mz_bits<__nv_bfloat16>(v); }
static inline float2 __bfloat1622float2(__nv_bfloat162 v) { return {(float)v.x, (float)v.y}; }
static inline __nv_bfloat162 __floats2bfloat162_rn(float x, float y) { return {__nv_bfloat16(x), __nv_bfloat16(y)}; }

// Mathematics: <math.h> has most of it

using std::isfinite;
using std::isinf;
using std::isnan;
using std::signbit;
#define MZ_EXTREMES(T)                                                                                       \
    static inline T min(T a, T b) { return b < a ? b : a; }                                                  \
    static inline T max(T a, T b) { return a < b ? b : a; }
MZ_EXTREMES(int)
MZ_EXTREMES(unsigned)
MZ_EXTREMES(long)
MZ_EXTREMES(unsigned long)
MZ_EXTREMES(long long)
MZ_EXTREMES(unsigned long long)
static inline float min(float a, float b) { return fminf(a, b); }
static inline float max(float a, float b) { return fmaxf(a, b); }
static inline double min(double a, double b) { return fmin(a, b); }
static inline double max(double a, double b) { return fmax(a, b); }
static inline float rsqrtf(float v) { return 1.0f / sqrtf(v); }
static inline double rsqrt(double v) { return 1.0 / sqrt(v); }
static inline float rsqrt(float v) { return 1.0f / sqrtf(v); }
#define __expf expf  // the C library has such names of its own
#define __logf logf
#define __powf powf
#define __sinf sinf
#define __cosf cosf
#define __tanhf tanhf
static inline float __fdividef(float a, float b) { return a / b; }
static inline float __fdiv_rn(float a, float b) { return a / b; }
static inline float __fadd_rn(float a, float b) { return a + b; }
static inline float __fsub_rn(float a, float b) { return a - b; }
static inline float __fmul_rn(float a, float b) { return a * b; }
static inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
static inline float __fsqrt_rn(float v) { return sqrtf(v); }
static inline float __frcp_rn(float v) { return 1.0f / v; }
static inline double __dadd_rn(double a, double b) { return a + b; }
static inline double __dmul_rn(double a, double b) { return a * b; }
static inline float __saturatef(float v) { return v > 0 ? (v < 1 ? v : 1.0f) : 0.0f; }
static inline int __float_as_int(float v) { return mz_bits<int>(v); }
static inline unsigned __float_as_uint(float v) { return mz_bits<unsigned>(v); }
static inline float __int_as_float(int v) { return mz_bits<float>(v); }
static inline float __uint_as_float(unsigned v) { return mz_bits<float>(v); }
static inline long long __double_as_longlong(double v) { return mz_bits<long long>(v); }
static inline double __longlong_as_double(long long v) { return mz_bits<double>(v); }
static inline int __float2int_rd(float v) { return (int)floorf(v); }
static inline int __float2int_rn(float v) { return (int)rintf(v); }
static inline int __float2int_rz(float v) { return (int)v; }
static inline unsigned __umulhi(unsigned a, unsigned b) { return (unsigned)(((unsigned long long)a * b) >> 32); }
static inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
    return (unsigned long long)(((unsigned __int128)a * b) >> 64);
}
static inline int __popc(unsigned v) { return __builtin_popcount(v); }
static inline int __popcll(unsigned long long v) { return __builtin_popcountll(v); }
static inline int __ffs(int v) { return __builtin_ffs(v); }
static inline int __clz(int v) { return v ? __builtin_clz((unsigned)v) : 32; }
static inline int __clzll(long long v) { return v ? __builtin_clzll((unsigned long long)v) : 64; }
template <class T> static inline T __ldg(const T* p) { return *p; }
template <class T> static inline T __ldcs(const T* p) { return *p; }
template <class T> static inline void __stcs(T* p, T v) { *p = v; }

// Threads

static uint3 threadIdx, blockIdx;
static dim3 blockDim, gridDim;
static const int warpSize = 32;

enum MzStatus { MZ_READY, MZ_AT_BARRIER, MZ_IN_WARP, MZ_DONE };

struct MzThread {
    void* stack_pointer;
    uint3 index;
    MzStatus status;
    unsigned mask;             // lanes that meet
    int source;                // the lane whose value is wanted; -1 for a ballot
    int site;                  // the line of the barrier or the shuffle that it is at
    unsigned long long value;  // what is given, then what is got
};

static MzThread mz_threads[1024];
static unsigned mz_order;  // 0 forwards, 1 backwards, else a seed
static int mz_site;

// Number i of n in the present order: backwards, or by steps that have no factor in common with n.
static unsigned long long mz_nth(unsigned long long i, unsigned long long n) {
    static unsigned long long of, step;
    static unsigned order;
    if (mz_order < 2) return mz_order ? n - 1 - i : i;
    if (of != n || order != mz_order) {
        of = n, order = mz_order;
        for (step = mz_order * 2654435761ull % n;; step++) {
            unsigned long long a = step % n, b = n;
            while (a) { unsigned long long rest = b % a; b = a, a = rest; }
            if (b == 1) break;
        }
    }
    return (i * (step % n) + mz_order) % n;
}
static int mz_current, mz_count;
static const char* mz_error;
static void* mz_scheduler;
static void (*mz_invoke)(void**);
static void** mz_operands;
alignas(16) static unsigned char mz_dynamic_shared[232448];

// Saves the registers of this stack and goes on with another one (System V, x86-64)
extern "C" void mz_switch(void** from, void* to) __attribute__((visibility("hidden")));
asm(R"(
.text
.globl mz_switch
.hidden mz_switch
.type mz_switch, @function
mz_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
.size mz_switch, .-mz_switch
)");

static void mz_wait(MzStatus status) {
    MzThread& me = mz_threads[mz_current];
    me.status = status;
    mz_switch(&me.stack_pointer, mz_scheduler);
}

static void mz_thread_main() {
    mz_invoke(mz_operands);
    mz_wait(MZ_DONE);
}

static void mz_begin(int i) {
    static const size_t SIZE = 1 << 17;
    static char* stacks;
    if (!stacks)
        stacks = (char*)mmap(nullptr, 1024 * SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                             -1, 0);
    void** top = (void**)(stacks + (i + 1) * SIZE);
    *--top = nullptr;
    *--top = (void*)mz_thread_main;
    for (int r = 0; r < 6; r++) *--top = nullptr;
    MzThread& t = mz_threads[i];
    t.stack_pointer = top;
    t.status = MZ_READY;
    t.index = {i % blockDim.x, i / blockDim.x % blockDim.y, i / (blockDim.x * blockDim.y)};
}

static void mz_resume(int i) {
    mz_current = i;
    threadIdx = mz_threads[i].index;
    mz_switch(&mz_scheduler, mz_threads[i].stack_pointer);
}

// Lanes of a warp that wait for each other get each other's values, if all are there. Whether any were.
static bool mz_meet(int first, int lanes) {
    bool met = false;
    for (int lane = 0; lane < lanes; lane++) {
        MzThread& one = mz_threads[first + lane];
        if (one.status != MZ_IN_WARP) continue;
        unsigned mask = lanes < 32 ? one.mask & ((1u << lanes) - 1) : one.mask;
        if (!(mask >> lane & 1)) mz_error = "a lane is not in the mask that it names";
        bool complete = true;
        for (int j = 0; j < lanes; j++) {
            MzThread& other = mz_threads[first + j];
            if (!(mask >> j & 1)) continue;
            if (other.status == MZ_DONE) mz_error = "a lane of the mask has returned already";
            complete = complete && other.status == MZ_IN_WARP && other.mask == one.mask;
            if (other.status == MZ_IN_WARP && other.mask == one.mask && other.site != one.site)
                mz_error = "lanes of a mask are at different instructions";
        }
        if (mz_error) return false;
        if (!complete) continue;
        unsigned long long given[32], ballot = 0;
        for (int j = 0; j < lanes; j++) {
            given[j] = mz_threads[first + j].value;
            if (mask >> j & 1 && given[j]) ballot |= 1ull << j;
        }
        for (int j = 0; j < lanes; j++) {
            MzThread& other = mz_threads[first + j];
            if (!(mask >> j & 1)) continue;
            int from = other.source;
            other.value = from < 0 ? ballot : from < lanes && mask >> from & 1 ? given[from] : ~0ull;
            other.status = MZ_READY;
        }
        met = true;
    }
    return met;
}

static void mz_run_warp(int first, int lanes) {
    for (;;) {
        bool waiting = false;
        for (int i = 0; i < lanes; i++) {
            int lane = first + (int)mz_nth(i, lanes);
            if (mz_threads[lane].status == MZ_READY) mz_resume(lane);
        }
        for (int i = 0; i < lanes; i++) waiting = waiting || mz_threads[first + i].status == MZ_IN_WARP;
        if (!waiting) return;
        if (!mz_meet(first, lanes)) {
            if (!mz_error) mz_error = "lanes of a warp wait for each other for ever";
            return;
        }
    }
}

static void mz_run_block() {
    int warps = (mz_count + 31) / 32;
    for (int i = 0; i < mz_count; i++) mz_begin(i);
    for (;;) {
        for (int i = 0; i < warps && !mz_error; i++) {
            int first = 32 * (int)mz_nth(i, warps);
            mz_run_warp(first, mz_count - first < 32 ? mz_count - first : 32);
        }
        unsigned long long waiting = 0, held = 0;
        for (int i = 0; i < mz_count; i++)
            if (mz_threads[i].status == MZ_AT_BARRIER) waiting++, held += mz_threads[i].value != 0;
        if (mz_error || !waiting) return;
        int site = -1;
        for (int i = 0; i < mz_count; i++) {
            const MzThread& t = mz_threads[i];
            if (t.status == MZ_DONE) mz_error = "a barrier for which threads do not come: they have returned";
            if (t.status == MZ_AT_BARRIER && site >= 0 && t.site != site)
                mz_error = "threads of a block wait at different barriers";
            if (t.status == MZ_AT_BARRIER) site = t.site;
        }
        if (mz_error) return;
        for (int i = 0; i < mz_count; i++)
            if (mz_threads[i].status == MZ_AT_BARRIER)
                mz_threads[i].status = MZ_READY, mz_threads[i].value = waiting << 32 | held;
    }
}

static inline unsigned long long mz_barrier(bool predicate, int site) {
    mz_threads[mz_current].value = predicate;
    mz_threads[mz_current].site = site;
    mz_wait(MZ_AT_BARRIER);
    return mz_threads[mz_current].value;
}
static inline int mz_all(unsigned long long v) { return (v & 0xffffffffu) == v >> 32; }
#define __syncthreads() ((void)mz_barrier(false, __LINE__))
#define __syncthreads_or(p) ((mz_barrier(p, __LINE__) & 0xffffffffu) != 0)
#define __syncthreads_count(p) ((int)(mz_barrier(p, __LINE__) & 0xffffffffu))
#define __syncthreads_and(p) (mz_all(mz_barrier(p, __LINE__)))

static inline int mz_lane() { return mz_current % 32; }
static inline unsigned long long mz_exchange(unsigned mask, unsigned long long value, int source) {
    MzThread& me = mz_threads[mz_current];
    me.mask = mask, me.value = value, me.source = source, me.site = mz_site;
    mz_wait(MZ_IN_WARP);
    return mz_threads[mz_current].value;
}
template <class T> static inline T mz_shuffle(unsigned mask, T v, int source) {
    static_assert(sizeof(T) <= 8, "shuffles move 8 bytes and fewer");
    unsigned long long value = 0;
    memcpy(&value, &v, sizeof v);
    value = mz_exchange(mask, value, source);
    memcpy(&v, &value, sizeof v);
    return v;
}
template <class T> static inline T __shfl_sync(unsigned mask, T v, int source, int width = 32) {
    return mz_shuffle(mask, v, (mz_lane() & ~(width - 1)) + (source & (width - 1)));
}
template <class T> static inline T __shfl_xor_sync(unsigned mask, T v, int with, int width = 32) {
    int lane = mz_lane(), source = lane ^ with;
    return mz_shuffle(mask, v, source >= (lane & ~(width - 1)) + width ? lane : source);
}
template <class T> static inline T __shfl_down_sync(unsigned mask, T v, unsigned by, int width = 32) {
    int lane = mz_lane();
    return mz_shuffle(mask, v, (lane & (width - 1)) + (int)by >= width ? lane : lane + (int)by);
}
template <class T> static inline T __shfl_up_sync(unsigned mask, T v, unsigned by, int width = 32) {
    int lane = mz_lane();
    return mz_shuffle(mask, v, (lane & (width - 1)) - (int)by < 0 ? lane : lane - (int)by);
}
static inline unsigned __ballot_sync(unsigned mask, int p) { return (unsigned)mz_exchange(mask, p != 0, -1); }
static inline int __any_sync(unsigned mask, int p) { return __ballot_sync(mask, p) != 0; }
static inline int __all_sync(unsigned mask, int p) { return __ballot_sync(mask, !p) == 0; }
static inline void __syncwarp(unsigned mask = 0xffffffffu) { __ballot_sync(mask, 0); }
template <class T> static inline unsigned __match_any_sync(unsigned mask, T v) {
    unsigned found = 0;
    for (int lane = 0; lane < 32; lane++)
        if (mask >> lane & 1) {
            T theirs = mz_shuffle(mask, v, lane);
            if (!memcmp(&theirs, &v, sizeof v)) found |= 1u << lane;
        }
    return found;
}
// Lanes of one mask have to be at one of these together: they tell their line.
#define MZ_AT(F, ...) (mz_site = __LINE__, F(__VA_ARGS__))
#define __shfl_sync(...) MZ_AT(__shfl_sync, __VA_ARGS__)
#define __shfl_xor_sync(...) MZ_AT(__shfl_xor_sync, __VA_ARGS__)
#define __shfl_down_sync(...) MZ_AT(__shfl_down_sync, __VA_ARGS__)
#define __shfl_up_sync(...) MZ_AT(__shfl_up_sync, __VA_ARGS__)
#define __ballot_sync(...) MZ_AT(__ballot_sync, __VA_ARGS__)
#define __any_sync(...) MZ_AT(__any_sync, __VA_ARGS__)
#define __all_sync(...) MZ_AT(__all_sync, __VA_ARGS__)
#define __syncwarp(...) MZ_AT(__syncwarp, __VA_ARGS__)
static inline void __threadfence() {}
static inline void __threadfence_block() {}

// Atomics, of whole numbers alone: sums of floats would depend on who comes first

#define MZ_ATOMICS(T)                                                                                        \
    static inline T atomicAdd(T* p, T v) { T old = *p; *p = old + v; return old; }                           \
    static inline T atomicMax(T* p, T v) { T old = *p; if (old < v) *p = v; return old; }                    \
    static inline T atomicMin(T* p, T v) { T old = *p; if (v < old) *p = v; return old; }                    \
    static inline T atomicOr(T* p, T v) { T old = *p; *p = old | v; return old; }                            \
    static inline T atomicAnd(T* p, T v) { T old = *p; *p = old & v; return old; }                           \
    static inline T atomicXor(T* p, T v) { T old = *p; *p = old ^ v; return old; }                           \
    static inline T atomicExch(T* p, T v) { T old = *p; *p = v; return old; }                                \
    static inline T atomicCAS(T* p, T is, T v) { T old = *p; if (old == is) *p = v; return old; }
MZ_ATOMICS(int)
MZ_ATOMICS(unsigned)
MZ_ATOMICS(long long)
MZ_ATOMICS(unsigned long long)

// Launches

template <class... A> struct MzCall {
    static const int count = sizeof...(A);
    static constexpr int sizes[sizeof...(A) + 1] = {(std::is_pointer_v<A> ? -1 : (int)sizeof(A))..., 0};
    template <void (*F)(A...), size_t... I> static void with(void** operands, std::index_sequence<I...>) {
        F(*(A*)operands[I]...);
    }
    template <void (*F)(A...)> static void invoke(void** operands) {
        with<F>(operands, std::index_sequence_for<A...>());
    }
};
template <class F> struct MzSignature;
template <class... A> struct MzSignature<void (*)(A...)> : MzCall<A...> {};

struct MzKernel {
    const char* name;
    void (*invoke)(void**);
    int count;
    const int* sizes;  // of each parameter: bytes, -1 for a pointer
    bool waits;
    char *shared, *shared_end;
};
#define MZ_KERNEL(F, WAITS, BEGIN, END)                                                                      \
    {#F, MzSignature<decltype(&F)>::invoke<&F>, MzSignature<decltype(&F)>::count,                            \
     MzSignature<decltype(&F)>::sizes, WAITS, BEGIN, END}

static const char* mz_launch(const MzKernel& kernel, void** operands, const unsigned* grid, const unsigned* block,
                             unsigned dynamic, unsigned order) {
    mz_error = nullptr, mz_order = order;
    mz_invoke = kernel.invoke, mz_operands = operands;
    gridDim = {grid[0], grid[1], grid[2]}, blockDim = {block[0], block[1], block[2]};
    mz_count = (int)(block[0] * block[1] * block[2]);
    unsigned long long blocks = (unsigned long long)grid[0] * grid[1] * grid[2];
    for (unsigned long long i = 0; i < blocks && !mz_error; i++) {
        unsigned long long b = mz_nth(i, blocks);
        blockIdx = {(unsigned)(b % grid[0]), (unsigned)(b / grid[0] % grid[1]), (unsigned)(b / grid[0] / grid[1])};
        if (kernel.shared) memset(kernel.shared, 0xff, (size_t)(kernel.shared_end - kernel.shared));
        memset(mz_dynamic_shared, 0xff, dynamic);
        if (kernel.waits) {
            mz_run_block();
            continue;
        }
        for (int n = 0; n < mz_count; n++) {
            mz_current = (int)mz_nth(n, mz_count);
            unsigned t = (unsigned)mz_current;
            threadIdx = {t % block[0], t / block[0] % block[1], t / (block[0] * block[1])};
            kernel.invoke(operands);
        }
    }
    return mz_error;
}

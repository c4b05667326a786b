/*
 * A stand-in for the CUDA driver, NVRTC and cuBLASLt that computes nothing, to measure the host's part of a GPU server
 * on a machine without one: everything above the driver is real. Launching a graph takes STEP_US microseconds of its
 * stream (4100), any other launch LAUNCH_US (2), and every draw is the token TOKEN (300).
 *
 *   mkdir -p /tmp/cuda/lib && cc -O2 -shared -fPIC -w -o /tmp/cuda/lib/libcuda.so.1 scripts/stand-in-cuda.c
 *   for name in nvrtc cublasLt; do cp /tmp/cuda/lib/libcuda.so.1 /tmp/cuda/lib/lib$name.so.12; done
 *   export CUDA_HOME=/tmp/cuda LD_LIBRARY_PATH=/tmp/cuda/lib XDG_CACHE_HOME=/tmp/cuda/cache # not a real card's kernels
 *   THREADS=1 node scripts/through-http.js MODEL 320 256 0 --device cuda:0 --vocab models/demo.vocab.txt
 */
#define _GNU_SOURCE
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <stdio.h>
#include <unistd.h>
#include <sys/mman.h>
typedef uint64_t P;
static double now(){struct timespec t;clock_gettime(CLOCK_MONOTONIC,&t);return t.tv_sec*1e6+t.tv_nsec/1e3;}
static double until[2]; static double step_us=4100, launch_us=2; static int capturing, nodes; static P next=1ull<<33;
static int token=300;
static double env(const char*n,double d){char*e=getenv(n);return e?atof(e):d;}
typedef struct {double at;} Ev;
static P give(){return next+=1<<21;}
static int s_of(P s){return s==2;}
static void add(P s,double us){double n=now();double*u=&until[s_of(s)];if(*u<n)*u=n;*u+=us;}
int cuInit(uint32_t f){step_us=env("STEP_US",4100);launch_us=env("LAUNCH_US",2);token=env("TOKEN",300);return 0;}
int cuDriverGetVersion(int*v){*v=12080;return 0;}
int cuGetErrorName(int e,char**p){*p="FAKE";return 0;}
int cuGetErrorString(int e,char**p){*p="fake";return 0;}
int cuDeviceGetCount(int*c){*c=1;return 0;}
int cuDeviceGet(int*d,int o){*d=0;return 0;}
int cuDeviceGetName(char*n,int l,int d){strcpy(n,"Fake H200");return 0;}
int cuDeviceGetUuid_v2(char*u,int d){memset(u,7,16);return 0;}
int cuDeviceGetAttribute(int*v,int a,int d){*v=a==75?9:a==76?0:a==16?132:a==38?(50<<20):a==97?232448:1;return 0;}
int cuDeviceTotalMem_v2(uint64_t*b,int d){*b=141ull<<30;return 0;}
int cuDevicePrimaryCtxRetain(P*o,int d){*o=give();return 0;}
int cuStreamCreate(P*o,uint32_t f){static P s=1;*o=s++;return 0;}
int cuStreamWaitEvent(P s,P e,uint32_t f){double a=((Ev*)e)->at;double*u=&until[s_of(s)];if(*u<a)*u=a;return 0;}
static void waitTill(double t){double n;while((n=now())<t)usleep(t-n>50?(t-n):1);}
int cuStreamSynchronize(P s){waitTill(until[s_of(s)]);return 0;}
int cuStreamBeginCapture_v2(P s,int m){capturing=1;nodes=0;return 0;}
int cuStreamEndCapture(P s,P*g){capturing=0;*g=give();return 0;}
int cuGraphInstantiateWithFlags(P*o,P g,uint64_t f){*o=give();return 0;}
int cuGraphGetNodes(P g,P*n,uint64_t*c){*c=300;return 0;}
int cuEventCreate(P*o,uint32_t f){*o=(P)calloc(1,sizeof(Ev));return 0;}
int cuEventDestroy_v2(P e){return 0;}
int cuEventRecord(P e,P s){((Ev*)e)->at=until[s_of(s)];return 0;}
int cuEventSynchronize(P e){waitTill(((Ev*)e)->at);return 0;}
int cuEventElapsedTime(float*ms,P a,P b){*ms=.01f;return 0;}
int cuEventQuery(P e){return now()>=((Ev*)e)->at?0:600;}
int cuMemGetInfo_v2(uint64_t*f,uint64_t*t){*f=135ull<<30;*t=141ull<<30;return 0;}
int cuMemAlloc_v2(P*o,uint64_t b){*o=next;next+=(b+(2<<20))&~((2ull<<20)-1);return 0;}
// Draws are copied to the host, or a kernel writes them there: small page-locked memory is filled at every graph.
static void draw(P to,uint64_t b){int*p=(int*)to;for(uint64_t i=0;b<(1<<20)&&i<b/4;i++)p[i]=token;}
static struct {P at;uint64_t bytes;} pinned[4096];
static int numPinned;
int cuMemHostAlloc(P*o,uint64_t b,uint32_t f){
  *o=(P)mmap(0,b,3,MAP_PRIVATE|MAP_ANONYMOUS,-1,0);
  if(b<(1<<18)&&numPinned<4096)pinned[numPinned].at=*o,pinned[numPinned++].bytes=b;
  return 0;
}
static void step(P s){add(s,step_us);for(int i=0;i<numPinned;i++)draw(pinned[i].at,pinned[i].bytes);}
int cuGraphLaunch(P g,P s){step(s);return 0;}
int cuMemFreeHost(P a){return 0;}
int cuMemcpyHtoDAsync_v2(P to,P from,uint64_t b,P s){if(!capturing)add(s,b/50e3);return 0;}
int cuMemcpyDtoHAsync_v2(P to,P from,uint64_t b,P s){if(!capturing)add(s,b/50e3);draw(to,b);return 0;}
int cuMemcpyDtoDAsync_v2(P to,P from,uint64_t b,P s){if(!capturing)add(s,b/2e6);return 0;}
int cuModuleLoadData(P*o,P i){*o=give();return 0;}
int cuModuleGetFunction(P*o,P m,const char*n){*o=give();return 0;}
int cuFuncGetAttribute(int*v,int a,P f){*v=64;return 0;}
int cuOccupancyMaxActiveBlocksPerMultiprocessor(int*o,P f,int t,uint64_t s){*o=1;return 0;}
int cuOccupancyMaxActiveClusters(int*o,P f,P c){*o=15;return 0;}
int cuLaunchKernelEx(P c,P f,P a,P e){if(!capturing)add(1,launch_us);return 0;}
int cuLaunchKernel(){if(!capturing)add(1,launch_us);return 0;}
int cuDeviceCanAccessPeer(int*o,int a,int b){*o=0;return 0;}
#define N(x) int x(){return 0;}
N(cuDevicePrimaryCtxRelease_v2) N(cuCtxSetCurrent) N(cuCtxEnablePeerAccess) N(cuStreamDestroy_v2) N(cuGraphUpload) 
N(cuGraphExecDestroy) N(cuGraphDestroy)
N(cuMemFree_v2) N(cuMemHostRegister_v2) N(cuMemHostUnregister) N(cuMemcpyPeerAsync) N(cuMemsetD8Async) 
N(cuMemsetD32Async) N(cuModuleUnload) N(cuFuncSetAttribute) N(cuTensorMapEncodeTiled)
int nvrtcVersion(int*a,int*b){*a=12;*b=8;return 0;}
const char*nvrtcGetErrorString(int e){return "fake";}
int nvrtcGetNumSupportedArchs(int*c){*c=1;return 0;}
int nvrtcGetSupportedArchs(int*c){*c=90;return 0;}
int nvrtcCreateProgram(P*o){*o=give();return 0;}
N(nvrtcCompileProgram)N(nvrtcDestroyProgram)
int nvrtcGetProgramLogSize(P p,uint64_t*s){*s=1;return 0;}
N(nvrtcGetProgramLog)
int nvrtcGetCUBINSize(P p,uint64_t*s){*s=64;return 0;}
int nvrtcGetCUBIN(P p,char*d){memset(d,1,64);return 0;}
int nvrtcGetPTXSize(P p,uint64_t*s){*s=64;return 0;}
int nvrtcGetPTX(P p,char*d){memset(d,1,64);return 0;}
uint64_t cublasLtGetVersion(){return 120805;}
const char*cublasLtGetStatusName(int e){return "FAKE";}
const char*cublasLtGetStatusString(int e){return "fake";}
int cublasLtCreate(P*o){*o=give();return 0;}
int cublasLtMatmulDescCreate(P*o){*o=give();return 0;}
int cublasLtMatrixLayoutCreate(P*o){*o=give();return 0;}
int cublasLtMatmulPreferenceCreate(P*o){*o=give();return 0;}
N(cublasLtDestroy) N(cublasLtMatmulDescDestroy) N(cublasLtMatmulDescSetAttribute) N(cublasLtMatrixLayoutDestroy) 
N(cublasLtMatrixLayoutSetAttribute) N(cublasLtMatmulPreferenceDestroy) N(cublasLtMatmulPreferenceSetAttribute)
int cublasLtMatmulAlgoConfigGetAttribute(P al,int a,int*v,uint64_t s,uint64_t*w){*v=0;*w=4;return 0;}
int cublasLtMatmulAlgoGetHeuristic(P h,P d,P a,P b,P c,P e,P pr,int most,char*r,int*n){memset(r,0,96);*n=1;return 0;}
int cublasLtMatmulAlgoCheck(P h,P d,P a,P b,P c,P e,P al,char*r){memset(r,0,96);return 0;}
int cublasLtMatmul(){if(!capturing)add(1,launch_us);return 0;}

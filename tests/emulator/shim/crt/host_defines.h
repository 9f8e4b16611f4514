// In place of NVIDIA's header of this name, which the CUDA 12 wheel lacks: cuda_emu.h defines what
// it would.
#pragma once

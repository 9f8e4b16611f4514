// All losses of rows.
#pragma once
#include "losses/distances.cuh"
#include "losses/margins.cuh"
#include "losses/softmax.cuh"

#include "coppice/attention/dlpack.h"

#include <dlpack/dlpack.h>
#include <gtest/gtest.h>

namespace coppice::attention {
namespace {

DLTensor Tensor(void* data, int ndim, int64_t* shape, int64_t* strides, DLDataType dtype) {
  DLTensor tensor{};
  tensor.data = data;
  tensor.ndim = ndim;
  tensor.shape = shape;
  tensor.strides = strides;
  tensor.dtype = dtype;
  return tensor;
}

TEST(Dlpack, RowsOfAFusedProjection) {
  float data[2 * 96];
  int64_t shape[3] = {2, 4, 16}, strides[3] = {96, 16, 1};
  DLTensor q = Tensor(data, 3, shape, strides, {kDLFloat, 32, 1});
  q.byte_offset = 32 * sizeof(float);
  const Result<RowsView> rows = RowsFromDlpack(q, "q");
  ASSERT_TRUE(rows.ok()) << rows.status().ToString();
  EXPECT_EQ(rows->data, data + 32);
  EXPECT_EQ(rows->row_stride, 96);
  EXPECT_EQ(rows->heads, 4);
  EXPECT_EQ(rows->dtype, DType::kF32);
}

TEST(Dlpack, KvInBothLayouts) {
  uint16_t k[3 * 8 * 2 * 64], v[3 * 8 * 2 * 64];
  int64_t nhd[4] = {3, 8, 2, 64}, hnd[4] = {3, 2, 8, 64};
  const DLDataType bf16 = {kDLBfloat, 16, 1};
  const Result<KvLayerView> a =
      KvLayerFromDlpack(Tensor(k, 4, nhd, nullptr, bf16), Tensor(v, 4, nhd, nullptr, bf16), KvLayout::kNHD);
  ASSERT_TRUE(a.ok()) << a.status().ToString();
  EXPECT_EQ(a->slot_stride, 128);
  EXPECT_EQ(a->head_stride, 64);
  EXPECT_EQ(a->page_stride, 1024);
  EXPECT_EQ(a->page_size, 8);
  EXPECT_EQ(a->num_pages, 3);
  const Result<KvLayerView> b =
      KvLayerFromDlpack(Tensor(k, 4, hnd, nullptr, bf16), Tensor(v, 4, hnd, nullptr, bf16), KvLayout::kHND);
  ASSERT_TRUE(b.ok()) << b.status().ToString();
  EXPECT_EQ(b->slot_stride, 64);
  EXPECT_EQ(b->head_stride, 512);
  EXPECT_EQ(b->page_size, 8);
}

TEST(Dlpack, StridesOfDimensionsOfOneDoNotMatter) {
  float data[64];
  int64_t row[3] = {1, 2, 16}, row_strides[3] = {0, 16, 1};
  const Result<RowsView> rows = RowsFromDlpack(Tensor(data, 3, row, row_strides, {kDLFloat, 32, 1}), "q");
  ASSERT_TRUE(rows.ok()) << rows.status().ToString();
  EXPECT_EQ(rows->row_stride, 32);
  int64_t page[4] = {1, 2, 1, 16}, k_strides[4] = {0, 16, 7, 1}, v_strides[4] = {32, 16, 16, 1};
  const Result<KvLayerView> layer = KvLayerFromDlpack(Tensor(data, 4, page, k_strides, {kDLFloat, 32, 1}),
                                                      Tensor(data, 4, page, v_strides, {kDLFloat, 32, 1}), KvLayout::kNHD);
  ASSERT_TRUE(layer.ok()) << layer.status().ToString();
  EXPECT_EQ(layer->slot_stride, 16);
}

TEST(Dlpack, RefusesWhatAttentionCannotRead) {
  float data[64];
  int64_t shape[3] = {2, 2, 16}, transposed[3] = {32, 1, 2}, padded[3] = {64, 20, 1};
  EXPECT_EQ(RowsFromDlpack(Tensor(data, 2, shape, nullptr, {kDLFloat, 32, 1}), "q").status().message(),
            "q: the tensor has 2 dimensions; expected 3");
  EXPECT_EQ(RowsFromDlpack(Tensor(data, 3, shape, transposed, {kDLFloat, 32, 1}), "q").status().message(),
            "q: head_dim has stride 2; expected 1 (call contiguous() on the last dimension)");
  EXPECT_EQ(RowsFromDlpack(Tensor(data, 3, shape, padded, {kDLFloat, 32, 1}), "q").status().message(),
            "q: heads have stride 20; expected 16 (heads of a row must be contiguous)");
  EXPECT_EQ(RowsFromDlpack(Tensor(data, 3, shape, nullptr, {kDLInt, 32, 1}), "q").status().code(), StatusCode::kInvalidArgument);
  int64_t kv[4] = {1, 2, 2, 8}, other[4] = {1, 2, 1, 8};
  EXPECT_EQ(KvLayerFromDlpack(Tensor(data, 4, kv, nullptr, {kDLFloat, 32, 1}), Tensor(data, 4, other, nullptr, {kDLFloat, 32, 1}),
                              KvLayout::kNHD)
                .status()
                .code(),
            StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace coppice::attention

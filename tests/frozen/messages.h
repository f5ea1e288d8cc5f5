// Every control message, for programs that must see all of them: `v.all<M...>()` is called with
// each.
#pragma once
#include "p2p/filecopy/messages.h"
#include "p2p/swarm/messages.h"
#include "rpc/envelope.h"
#include "serve/protocol/messages.h"
#include "serve/protocol/pipeline_messages.h"
#include "store/node/segment_index.h"
#include "store/protocol/messages.h"
#include "store/protocol/node_messages.h"
#include "store/protocol/query_messages.h"
#include "store/protocol/tier_messages.h"
#include "xfer/core/messages.h"
#include "xfer/core/scratch_memory.h"

namespace mc {

template <class V>
void each_serve_message(const V& v) {
  using namespace serve;
  v.template all<Reservation, Reserve, TxAllocated, TxAllocate, PrefixMore, AwaitPrefix,
                 PrefillDone, Prefill, TxCommitted, TxCommit, Abort, RoleSet, SetRole, Dismiss,
                 KvSnapshot, Snapshot, KvOffer, KvReady, KvFailed, TokenBatch, HeartbeatAck,
                 Heartbeat>();
  v.template all<PipelineOpened, PipelineOpen, PipelinePing, PipelineDone, PipelineBegin,
                 PipelineChunk, PipelineEnd, PipelineFetched, PipelineFetch, PipelinePut>();
}

template <class V>
void each_store_message(const V& v) {
  using namespace store;
  v.template all<Outcomes, PutStarted, PutStart, PutEnd, PutRevoke, Replicas, GetReplicas, Existing,
                 Exists, Matched, MatchPrefix, MatchBlocks, Remove, RemovePrefixed, RemovePrefix,
                 PinKeys, TaskInfo, CopyKey, ChangeReplicas, QueryTask, DrainInfo, Drain>();
  v.template all<Mounted, Mount, Inventory, Unmount, TaskDone, HeartbeatReply, Heartbeat>();
  v.template all<TierAck, TierMount, TierWork, TierHeartbeat, TierReport, Loaded, LoadObjects,
                 ReleaseSlots>();
  v.template all<Listed, List, ClusterStat, Stat, Replayed, Replay, Explained, Explain, ReportNode,
                 ReportReplica>();
  v.template all<IndexEntry>();
}

template <class V>
void each_xfer_message(const V& v) {
  using namespace xfer;
  v.template all<SegmentDescriptor, Notified, Notify, QueuePairOpened, OpenQueuePair,
                 QueuePairClosed, CloseQueuePair, KeepQueuePairs, QueuePairsKept, GuardRaised,
                 RaiseGuard, MachineDescription, DescribeMachine, DescribeSegment, ScratchMemory,
                 AskScratch>();
}
template <class V>
void each_files_message(const V& v) {
  using namespace p2p::filecopy;
  v.template all<Done, SlotLease, LeaseSlot, ReturnSlot, FoundEntry, LookAt, ListFolder, Sums,
                 SumPieces, Loaded, LoadPiece, MakeFolder, SetMode, Begun, BeginFile, StorePiece,
                 FinishFile, Page>();
}
template <class V>
void each_p2p_message(const V& v) {
  using namespace p2p;
  v.template all<SetList, ListSets, SetDescription, DescribeSet, ShardGrant, AskShard, Noted,
                 ReleaseShard, LeaveSwarm, DropSet>();
}

template <class V>
void each_message(const V& v) {
  v.template all<rpc::Envelope, rpc::ErrorBody, rpc::Empty>();
  each_serve_message(v);
  each_store_message(v);
  each_xfer_message(v);
  each_files_message(v);
  each_p2p_message(v);
}

}  // namespace mc

package translate

import (
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"
	networking "istio.io/api/networking/v1alpha3"
)

// applyBalancer sets the load balancing policy of a cluster. Istio's default is least request.
func (d *draft) applyBalancer() {
	l := d.policy.loadBalancer
	if hash := l.GetConsistentHash(); hash != nil {
		d.applyHash(hash)
		return
	}
	start := slowStart(l)
	switch l.GetSimple() {
	case networking.LoadBalancerSettings_RANDOM:
		d.LbPolicy = clusterv3.Cluster_RANDOM
	case networking.LoadBalancerSettings_ROUND_ROBIN:
		d.LbPolicy = clusterv3.Cluster_ROUND_ROBIN
		if start != nil {
			d.LbConfig = &clusterv3.Cluster_RoundRobinLbConfig_{
				RoundRobinLbConfig: &clusterv3.Cluster_RoundRobinLbConfig{SlowStartConfig: start}}
		}
	default:
		d.LbPolicy = clusterv3.Cluster_LEAST_REQUEST
		if start != nil {
			d.LbConfig = &clusterv3.Cluster_LeastRequestLbConfig_{
				LeastRequestLbConfig: &clusterv3.Cluster_LeastRequestLbConfig{
					SlowStartConfig: start}}
		}
	}
}

// slowStart returns the slow start of new endpoints, nil if none is requested. Istio's defaults are
// linear growth from 10 percent.
func slowStart(l *networking.LoadBalancerSettings) *clusterv3.Cluster_SlowStartConfig {
	warmup := l.GetWarmup()
	if warmup == nil {
		if old := l.GetWarmupDurationSecs(); old !=
			nil { //nolint:staticcheck // deprecated, still valid YAML
			return &clusterv3.Cluster_SlowStartConfig{SlowStartWindow: old}
		}
		return nil
	}
	out := &clusterv3.Cluster_SlowStartConfig{SlowStartWindow: warmup.Duration,
		MinWeightPercent: &typev3.Percent{Value: 10},
		// Envoy requires a key by which its runtime may override the value. The agent never uses
		// the key.
		Aggression: &corev3.RuntimeDouble{DefaultValue: 1,
			RuntimeKey: "outrider.warmup.aggression"}}
	if warmup.MinimumPercent != nil {
		out.MinWeightPercent.Value = warmup.MinimumPercent.Value
	}
	if warmup.Aggression != nil {
		out.Aggression.DefaultValue = warmup.Aggression.Value
	}
	return out
}

// smallestRing is Istio's default of minimumRingSize.
const smallestRing = 1024

func (d *draft) applyHash(hash *networking.LoadBalancerSettings_ConsistentHashLB) {
	if maglev := hash.GetMaglev(); maglev != nil {
		d.LbPolicy = clusterv3.Cluster_MAGLEV
		if maglev.TableSize != 0 {
			d.LbConfig = &clusterv3.Cluster_MaglevLbConfig_{
				MaglevLbConfig: &clusterv3.Cluster_MaglevLbConfig{
					TableSize: wrapperspb.UInt64(maglev.TableSize)}}
		}
		return
	}
	size := hash.GetRingHash().GetMinimumRingSize()
	if size == 0 {
		size = hash.GetMinimumRingSize() //nolint:staticcheck // deprecated, still valid YAML
	}
	if size == 0 {
		size = smallestRing
	}
	d.LbPolicy = clusterv3.Cluster_RING_HASH
	d.LbConfig = &clusterv3.Cluster_RingHashLbConfig_{
		RingHashLbConfig: &clusterv3.Cluster_RingHashLbConfig{MinimumRingSize: wrapperspb.UInt64(
			size)}}
}

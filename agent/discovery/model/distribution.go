package model

import "strings"

// TrafficDistributionAnnotation is the annotation of a ServiceEntry with the preferred endpoints,
// as in the field trafficDistribution of a Kubernetes Service.
const TrafficDistributionAnnotation = "networking.istio.io/traffic-distribution"

// hostnameLabel is the label with the name of the node that a workload runs on.
const hostnameLabel = "kubernetes.io/hostname"

// PreferredLabels returns the labels whose values an endpoint should share with the proxy, the most
// important one first; nil: no preference. The service's oldest ServiceEntry defines them.
func (s *Service) PreferredLabels() []string {
	switch strings.ToLower(s.OldestServiceEntry().Annotations[TrafficDistributionAnnotation]) {
	case "preferclose", "prefersamezone":
		return []string{NetworkLabel, TopologyLabels[0], TopologyLabels[1]}
	case "prefersamenode":
		return []string{NetworkLabel, TopologyLabels[0], TopologyLabels[1], TopologyLabels[2],
			hostnameLabel}
	}
	return nil
}

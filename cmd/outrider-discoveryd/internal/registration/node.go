package registration

import (
	"fmt"
	"maps"
	"net/netip"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
	networking "istio.io/api/networking/v1alpha3"
	"k8s.io/apimachinery/pkg/util/validation"

	"outrider.org/outrider/agent/discovery/model"
)

// Istio's annotations of registered WorkloadEntries.
const (
	GroupAnnotation        = "istio.io/autoRegistrationGroup"
	ControllerAnnotation   = "istio.io/workloadController"
	ConnectedAnnotation    = "istio.io/connectedAt"
	DisconnectedAnnotation = "istio.io/disconnectedAt"
)

// Bounds on the data that a node can write into an entry. The xDS server bounds the size of the
// node.
const (
	maxLabels   = 128
	maxName     = validation.DNS1123SubdomainMaxLength
	maxLocality = 253 // bytes
)

// applicant is a workload that requests its registration, as its node describes it.
type applicant struct {
	key      Key
	group    Key
	address  string
	network  string
	locality *string // REGION/ZONE/SUBZONE; nil: that of the WorkloadGroup
	labels   map[string]string
	probed   bool // the agent reports the workload's health
}

// newApplicant reads the node of a client by istiod's rules. It returns nil if the client does not
// request a registration. The node must have been authenticated.
func newApplicant(node *corev3.Node) (*applicant, error) {
	fields := node.GetMetadata().GetFields()
	group := fields["AUTO_REGISTER_GROUP"].GetStringValue()
	if group == "" {
		return nil, nil
	}
	namespace := fields["NAMESPACE"].GetStringValue()
	if len(validation.IsDNS1123Label(namespace)) > 0 {
		return nil, fmt.Errorf("NAMESPACE %.80q is not a valid name of a namespace", namespace)
	}
	if len(validation.IsDNS1123Subdomain(group)) > 0 {
		return nil, fmt.Errorf("AUTO_REGISTER_GROUP %.80q is not a valid name of a WorkloadGroup",
			group)
	}
	a := &applicant{group: Key{namespace, group}, network: fields["NETWORK"].GetStringValue()}
	if a.address = firstAddress(node); a.address == "" {
		return nil, fmt.Errorf("neither INSTANCE_IPS nor the node's ID %.80q has an IP address",
			node.GetId())
	}
	name := group + "-" + strings.ReplaceAll(a.address, ":", "-")
	if a.network != "" {
		name += "-" + a.network
	}
	a.key = Key{namespace, name[max(0, len(name)-maxName):]}
	if len(validation.IsDNS1123Subdomain(a.key.Name)) > 0 {
		return nil, fmt.Errorf("%.80q (from AUTO_REGISTER_GROUP, the IP address and NETWORK) is "+
			"not a valid name of a WorkloadEntry", a.key.Name)
	}
	if len(a.network) > 0 && len(validation.IsValidLabelValue(a.network)) > 0 {
		return nil, fmt.Errorf("NETWORK %.80q is not a valid value of a label", a.network)
	}
	var err error
	if a.labels, err = labelsOf(fields["LABELS"].GetStructValue()); err != nil {
		return nil, err
	}
	if l := node.GetLocality(); l != nil {
		text := localityOf(l)
		if a.locality = &text; len(text) > maxLocality {
			return nil, fmt.Errorf("the node's locality is longer than %d bytes", maxLocality)
		}
	}
	probe := fields["PROXY_CONFIG"].GetStructValue().GetFields()["readinessProbe"]
	a.probed = probe.GetStructValue() != nil
	return a, nil
}

// firstAddress returns the first address of INSTANCE_IPS if all of them are valid, else the address
// in the node's ID. It returns "" if that is invalid, too.
func firstAddress(node *corev3.Node) string {
	list := node.GetMetadata().GetFields()["INSTANCE_IPS"].GetStringValue()
	all := strings.Split(list, ",")
	for _, text := range all {
		if !isAddress(text) {
			all = nil
			break
		}
	}
	if len(all) > 0 {
		return all[0]
	}
	if parts := strings.Split(node.GetId(), "~"); len(parts) == 4 && isAddress(parts[1]) {
		return parts[1]
	}
	return ""
}

func isAddress(text string) bool {
	address, err := netip.ParseAddr(text)
	return err == nil && address.Zone() == ""
}

func labelsOf(from *structpb.Struct) (map[string]string, error) {
	fields := from.GetFields()
	if len(fields) > maxLabels {
		return nil, fmt.Errorf("LABELS has %d labels, more than %d", len(fields), maxLabels)
	}
	labels := make(map[string]string, len(fields))
	for key, value := range fields {
		text, ok := value.GetKind().(*structpb.Value_StringValue)
		if !ok {
			return nil, fmt.Errorf("LABELS: the value of %.80q is not a string", key)
		}
		if key != model.LocalityLabel && (len(validation.IsQualifiedName(key)) > 0 ||
			len(validation.IsValidLabelValue(text.StringValue)) > 0) {
			return nil, fmt.Errorf("LABELS: %.80q: %.80q is not a valid label", key, text.StringValue)
		}
		labels[key] = text.StringValue
	}
	return labels, nil
}

// localityOf returns REGION/ZONE/SUBZONE, cut off before the first empty zone or subzone.
func localityOf(l *corev3.Locality) string {
	text := l.GetRegion()
	for _, part := range []string{l.GetZone(), l.GetSubZone()} {
		if part == "" {
			break
		}
		text += "/" + part
	}
	return text
}

// workload returns the entry to create for a workload of the WorkloadGroup. Its labels are those of
// the node, the group's metadata and the group's template; the earlier ones have precedence.
func (a *applicant) workload(g *WorkloadGroup) *Workload {
	spec := &networking.WorkloadEntry{}
	if t := g.Spec.GetTemplate(); t != nil {
		spec = proto.CloneOf(t)
	}
	labels := map[string]string{}
	maps.Copy(labels, spec.Labels)
	maps.Copy(labels, g.Spec.GetMetadata().GetLabels())
	if len(a.labels) > 0 {
		maps.Copy(labels, a.labels)
		delete(labels, model.LocalityLabel) // the locality is in the entry's spec instead
	}
	spec.Labels, spec.Address = labels, a.address
	if a.network != "" {
		spec.Network = a.network
	}
	if a.locality != nil {
		spec.Locality = *a.locality
	}
	annotations := map[string]string{GroupAnnotation: g.Name}
	maps.Copy(annotations, g.Spec.GetMetadata().GetAnnotations())
	if a.probed {
		annotations[model.HealthAnnotation] = "true"
	}
	return &Workload{Key: a.key, Group: g, Spec: spec, Annotations: annotations}
}

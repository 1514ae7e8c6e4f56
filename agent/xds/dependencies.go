package xds

import "google.golang.org/protobuf/encoding/protowire"

// Field numbers of envoy.config.cluster.v3.Cluster, its EdsClusterConfig, and envoy.config.core.v3.ConfigSource.
const (
	clusterNameField      = 1
	clusterTypeField      = 2
	clusterEDSField       = 3
	edsConfigSourceField  = 1
	edsServiceNameField   = 2
	configSourceADSField  = 3
	configSourceSelfField = 5
	clusterTypeEDS        = 3
)

// endpointsOf returns the name of the endpoints (ClusterLoadAssignment) that an encoded cluster asks this stream for; ok
// is false if it asks for none. Envoy builds a changed cluster anew and keeps it warming until its endpoints are sent
// again, though it does not ask for them: whoever sends a changed cluster sends them too. A look at a few fields is enough,
// decoding the cluster would cost ten times as much.
func endpointsOf(cluster []byte) (name string, ok bool) {
	var clusterName, serviceName string
	var eds, aggregated bool
	wellFormed := fields(cluster, func(f field, varint uint64, bytes []byte) {
		switch f {
		case field{clusterNameField, protowire.BytesType}:
			clusterName = string(bytes)
		case field{clusterTypeField, protowire.VarintType}:
			eds = varint == clusterTypeEDS
		case field{clusterEDSField, protowire.BytesType}:
			fields(bytes, func(f field, _ uint64, bytes []byte) {
				switch f {
				case field{edsServiceNameField, protowire.BytesType}:
					serviceName = string(bytes)
				case field{edsConfigSourceField, protowire.BytesType}:
					fields(bytes, func(f field, _ uint64, _ []byte) {
						aggregated = aggregated || f == field{configSourceADSField, protowire.BytesType} ||
							f == field{configSourceSelfField, protowire.BytesType}
					})
				}
			})
		}
	})
	if !wellFormed || !eds || !aggregated {
		return "", false
	}
	if serviceName != "" {
		return serviceName, true
	}
	return clusterName, clusterName != ""
}

// field is a field's number and the form its value has on the wire. Another form than the schema's makes it an unknown field,
// which decoders keep and pass on.
type field struct {
	number protowire.Number
	form   protowire.Type
}

// fields calls visit for each field of an encoded message, with its value as a number or as bytes; false if the message is
// malformed.
func fields(message []byte, visit func(f field, varint uint64, bytes []byte)) bool {
	for len(message) > 0 {
		number, kind, n := protowire.ConsumeTag(message)
		if n < 0 {
			return false
		}
		message = message[n:]
		var varint uint64
		var bytes []byte
		switch kind {
		case protowire.VarintType:
			varint, n = protowire.ConsumeVarint(message)
		case protowire.BytesType:
			bytes, n = protowire.ConsumeBytes(message)
		default:
			n = protowire.ConsumeFieldValue(number, kind, message)
		}
		if n < 0 {
			return false
		}
		visit(field{number, kind}, varint, bytes)
		message = message[n:]
	}
	return true
}

